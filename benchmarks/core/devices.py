"""Checks that the devices and the communication backends that cells ask for are available. Imports no torch."""

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from resireduce.errors import ConfigError, choose

DEVICE_VARIABLE = "RESIREDUCE_DEVICE"
DEVICES = ("cpu", "cuda")


def wanted_device() -> str | None:
    """Return the device that RESIREDUCE_DEVICE asks for; None: a GPU if there is one. Raises ConfigError."""
    value = os.environ.get(DEVICE_VARIABLE)
    return choose(DEVICE_VARIABLE, value, DEVICES) if value else None


def has_nvidia() -> bool:
    """Say whether this machine has NVIDIA devices, with a driver."""
    return Path("/dev/nvidiactl").exists()


def check_backend(backend: str, image: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError if `backend` is Horovod and it is not installed; `image` is the ranks' image, if any."""
    if backend == "horovod" and image is not None:
        if not image["versions"].get("horovod"):
            raise ConfigError(f"backend: 'horovod' cannot be used: image {image['name']} has no Horovod; take another")
    elif backend == "horovod" and find_spec("horovod") is None:
        raise ConfigError("backend: 'horovod' cannot be used: Horovod is not installed; install it: make horovod")


def check_backends(cells: Iterable[Cell]) -> None:
    """Raise ConfigError, one line with the first such cell, if cells need a backend that is not installed."""
    for cell in cells:
        try:
            check_backend(cell.backend)
        except ConfigError as error:
            raise ConfigError(f"{cell.name}: {error}, or leave such cells out") from None
