"""Where cells run: in which image, on which cluster. Imported by the workflow only."""

import atexit
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.checks import within
from benchmarks.core.devices import has_nvidia
from benchmarks.core.paths import IMAGES
from benchmarks.core.run_config import get_runtime
from benchmarks.launching.containers.entry import IMAGES as NAMES
from benchmarks.launching.containers.entry import ImageEntry, image_content
from benchmarks.launching.slurm.site import Site, site_file
from benchmarks.launching.slurm.step import place
from resireduce.errors import ConfigError, choose


@dataclass(frozen=True)
class Image:
    """An image, and how cells run in it. Its text form is part of the run's first line."""

    name: str
    runtime: str
    content: str
    """12 hex digits over everything that it is built from."""

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
        return f"--runtime {self.runtime} --image {self.entry}"

    def check(self) -> None:
        """Raise ConfigError, one line, if its entry cannot be used: half written, or of another image."""
        if self.is_built:
            entry = ImageEntry.load(Path(self.entry))
            if (entry.name, entry.content) != (self.name, self.content):
                raise ConfigError(f"image: {self.entry} is of {entry.tag}, another image; delete that file")

    def prepare(self, jobs: Collection[str]) -> ExitStack:
        """Provide it, and an engine until the process ends, for jobs of these rules. Raises ConfigError."""
        stack, makes = ExitStack(), bool({"image", "sif"} & set(jobs))
        if makes or ("cell" in jobs and self.runtime == "docker"):
            from benchmarks.images.engine import engine

            stack.enter_context(engine())
            atexit.register(stack.close)
        if not makes and "cell" in jobs:
            from benchmarks.launching.containers.choose import find_runtime

            find_runtime(self.runtime, self.entry)
        return stack

    def state(self) -> str:
        """Return what a cell's results depend on: digest, once it is built, and runtime."""
        digest = ImageEntry.load(Path(self.entry)).digest if self.is_built else "not built"
        return f"image {digest}, {self.runtime}"

    def __str__(self) -> str:
        return f", in image {self.name} with {self.runtime}"


def get_image(config: Mapping[str, Any]) -> Image | None:
    """Return the image that cells run in; None without a runtime. Raises ConfigError, one line."""
    runtime = get_runtime(config)
    if runtime == "none":
        return None
    name = choose("image", str(config.get("image") or ("cuda12" if has_nvidia() else "cpu")), NAMES)
    image = Image(name, runtime, image_content(name))
    image.check()
    return image


PARTITIONS = "SNAKEMAKE_SLURM_PARTITIONS"
"""Variable in which Snakemake's executor for Slurm looks for the partitions when it starts."""


def get_site(config: dict[str, Any], overwritten: Mapping[str, Any]) -> Site | None:
    """Return the site if the profile in `overwritten` starts cells by srun; None on one machine.

    The site, and its settings for the image that `config` does not have, are entered into `config`.
    Raises ConfigError, one line.
    """
    if "launcher" not in overwritten.get("cell", {}):
        if "site" in config:
            raise ConfigError(f"site: {config['site']!r} is of no use without the profile: snakemake --profile slurm")
        return None
    config["site"] = str(config.get("site", site_file()))
    site = Site.load(Path(config["site"]))
    os.environ[PARTITIONS] = config["site"]
    if config.get("runtime") or site.runtime != "none":
        given = {"runtime": site.runtime, "image": site.image}
        config.update({name: value for name, value in given.items() if value is not None and name not in config})
    return site


def check_places(cells: Iterable[Cell], site: Site) -> None:
    """Raise ConfigError, one line with the cell, if the site has no place for it."""
    for cell in cells:
        with within(cell.name):
            place(cell, site)
