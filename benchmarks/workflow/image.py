"""The image that cells run in, for the rules. Imported by the workflow only."""

import atexit
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.devices import has_nvidia
from benchmarks.core.paths import IMAGES
from benchmarks.core.run_config import NETWORKS, RUNTIMES
from benchmarks.launching.containers.entry import IMAGES as NAMES
from benchmarks.launching.containers.entry import ImageEntry, image_content
from resireduce.errors import ConfigError, choose


@dataclass(frozen=True)
class Image:
    """An image, and how cells run in it. Its text form is part of the run's first line."""

    name: str
    runtime: str
    network: str
    content: str
    """12 hex digits over everything that it is built from."""
    chosen: bool
    """Whether the config names it."""

    @property
    def entry(self) -> str:
        """File of its entry, which its build writes."""
        return f"{IMAGES}/{self.name}-{self.content}.json"

    @property
    def is_built(self) -> bool:
        """Whether it has been built; only then is its digest known."""
        return Path(self.entry).exists()

    @property
    def sif(self) -> str | None:
        """File that apptainer reads; None for other runtimes, which have a store."""
        return f"{IMAGES}/{self.name}-{self.content}.sif" if self.runtime == "apptainer" else None

    @property
    def files(self) -> list[str]:
        """All files that must exist before a cell runs in it."""
        return [self.entry, *([self.sif] if self.sif else [])]

    @property
    def options(self) -> str:
        """Options of `python -m benchmarks run` and `image exec`."""
        return f"--runtime {self.runtime} --image {self.entry} --network {self.network}"

    def needs_engine(self, jobs: Collection[str]) -> bool:
        """Say whether a Docker Engine must run for jobs of these rules."""
        in_image = {"cell", "pretrained_in_image"} if self.runtime == "docker" else set()
        return self.runtime != "podman" and bool(set(jobs) & ({"image", "sif"} | in_image))

    def check(self) -> None:
        """Raise ConfigError, one line, if its entry cannot be used: half written, or of another image."""
        if self.is_built:
            entry = ImageEntry.load(Path(self.entry))
            if (entry.name, entry.content) != (self.name, self.content):
                raise ConfigError(f"image: {self.entry} is of {entry.tag}, another image; delete that file")

    def check_stored(self, jobs: Collection[str]) -> None:
        """Raise ConfigError, one line, if jobs of these rules need it, none of them makes it, and it is missing."""
        made = {"image", "sif"} & set(jobs)
        if not made and {"cell", "pretrained_in_image"} & set(jobs):
            from benchmarks.launching.containers.choose import find_runtime

            find_runtime(self.runtime, self.entry, self.network)

    def state(self) -> str:
        """Return what a cell's results depend on: digest, once it is built, runtime and network."""
        digest = ImageEntry.load(Path(self.entry)).digest if self.is_built else "not built"
        return f"image {digest}, {self.runtime}, network {self.network}"

    def __str__(self) -> str:
        machine = "this machine has " + ("an NVIDIA device" if has_nvidia() else "no NVIDIA device")
        why = "" if self.chosen else f" ({machine})"
        return f", in image {self.name}{why} with {self.runtime}, network {self.network}"


def get_image(config: Mapping[str, Any]) -> Image | None:
    """Return the image that cells run in; None without a runtime. Raises ConfigError, one line."""
    runtime = choose("runtime", _text(config, "runtime"), RUNTIMES)
    if runtime == "none":
        for key in ("image", "network"):
            if key in config:
                raise ConfigError(
                    f"{key}: {config[key]!r} is of no use without a runtime; give runtime=docker, or leave it out"
                )
        return None
    network = choose("network", _text(config, "network"), NETWORKS)
    name = choose("image", str(config.get("image") or ("cuda12" if has_nvidia() else "cpu")), NAMES)
    image = Image(name, runtime, network, image_content(name), "image" in config)
    image.check()
    return image


def start_engine() -> ExitStack:
    """Provide a Docker Engine until the process ends: the running one, or one of our own. Raises ConfigError."""
    from benchmarks.images.engine import engine

    stack = ExitStack()
    stack.enter_context(engine())
    atexit.register(stack.close)
    return stack


def _text(config: Mapping[str, Any], key: str) -> str:
    """Return a setting as text: YAML reads none as text, but null and an empty value as None."""
    return str(config.get(key) or "none")
