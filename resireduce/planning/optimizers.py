"""Optimizers by name, for planning, and their steps on tensors without storage."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from resireduce import private
from resireduce.errors import ConfigError, choose
from resireduce.optim import SecondMomentAdamW
from resireduce.scheme import COMPRESSORS, load
from resireduce.settings import Settings

Maker = Callable[..., torch.optim.Optimizer]
"""Called with a list of parameters, and with arguments by name, it returns an optimizer."""

OPTIMIZERS: dict[str, Maker] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "second-moment-adamw": SecondMomentAdamW,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
}
FUSED_KERNELS = frozenset(
    getattr(kernel, overload)
    for kernel in (getattr(torch.ops.aten, f"_fused_{name}_") for name in ("sgd", "adam", "adamw", "adagrad"))
    for overload in kernel.overloads()
)
"""The kernels of torch's optimizers in their fused form, each of which updates all parameters of a device in place."""


def make_optimizer(
    optimizer: str | Maker, parameters: list[nn.Parameter], arguments: Mapping[str, object], given: Settings
) -> torch.optim.Optimizer:
    """Return the optimizer of `parameters`, with `arguments`, ready for training as `given`.

    Raises ConfigError if there is no such optimizer.
    """
    listed = COMPRESSORS.get(given.compressor) if isinstance(given.compressor, str) else None
    if optimizer == "sgd" and listed is not None and listed.corrects_momentum:
        arguments = {"momentum": 0.0, **arguments}  # the compressor has it
    make: Any = optimizer
    if isinstance(optimizer, str):
        try:
            make = load(optimizer) if ":" in optimizer else OPTIMIZERS[choose("optimizer", optimizer, OPTIMIZERS)]
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"optimizer: {optimizer!r} cannot be loaded: {error}; give module:callable") from error
    made = make(parameters, **arguments)
    if callable(train := getattr(made, "train", None)):  # schedule-free ones refuse to step before
        train()
    return made


@contextmanager
def without_storage(on_gpu: bool = False) -> Iterator[None]:
    """Within it optimizers take steps on tensors without storage: what they read of values is 1 everywhere.

    Torch's optimizers may have their fused form: they make the states that they make on other devices, and their
    kernels, which hold nothing beside them, do nothing.

    on_gpu: whether they take the form that they choose by themselves on a GPU, for all tensors of a step together.
    """
    with _forms("fused"), _forms("foreach") if on_gpu else nullcontext(), Ones():
        yield


@contextmanager
def _forms(kind: str) -> Iterator[None]:
    """Within it torch's optimizers take their form `kind`, fused or foreach, for tensors without storage too."""
    module: Any = import_module("torch.optim.optimizer")  # torch.optim has no attribute of that name
    name = f"_get_{kind}_kernels_supported_devices"
    supported = getattr(module, name)
    setattr(module, name, lambda: [*supported(), "meta"])
    try:
        yield
    finally:
        setattr(module, name, supported)


class Ones(private.DispatchMode):
    """Answers 1 for a value that is read from a tensor without storage (`item`), where torch would raise.

    Kernels of fused optimizers, which such tensors lack, do nothing.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FUSED_KERNELS and args[0][0].is_meta:
            return None
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))
