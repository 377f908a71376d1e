"""The committed measurements, as the blocks of pages read them, and where they were made."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.files import load_json
from benchmarks.pages.words import listed, number
from benchmarks.report.intervals import usual_rows
from resireduce.errors import ConfigError

Row = dict[str, Any]
Settings = dict[tuple[str, str, str], Row]
"""Rows of one model by compressor, scheme and gradients."""


class Measured:
    """The JSON files of a folder like results/reference, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.load = cache(self._load)

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return (self.folder / f"{name}.json").exists()

    def _load(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        try:
            found: dict[str, Any] = load_json(path)
            return found
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None

    def settings(self, name: str) -> dict[str, Settings]:
        """Return by model the rows of a file of `python -m benchmarks intervals`, two ranks at the usual density."""
        return usual_rows(self.load(name)["rows"])

    def origin(self, name: str) -> str:
        """Return with how many seeds, on what and of which commit a file was measured."""
        values = self.load(name)
        seeds = sorted({row["seeds"] for row in values["rows"]})
        count = " to ".join(number(one) for one in dict.fromkeys((seeds[0], seeds[-1])))
        where = values["measured"]
        machines = listed([_machine(cpu, cores) for cpu in where["Processor"] for cores in where["Cores"]])
        commits = listed([f"`{commit[:7]}`" for commit in where["Commit"]])
        dirty = " with uncommitted changes" if where.get("Uncommitted changes", ["no"]) != ["no"] else ""
        return f"{count} seed{'' if seeds[-1] == 1 else 's'} on {machines}, commit {commits}{dirty}"


def _machine(cpu: str, cores: str) -> str:
    """Return a processor as people write it, from the name that the kernel has for it."""
    plain = re.sub(r"\((R|TM)\)| Processor| CPU", "", cpu)
    return f"{cores} cores (" + re.sub(r" @ ([0-9.]+)GHz", r" at \1 GHz", plain) + ")"
