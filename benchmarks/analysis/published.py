"""The numbers that the paper states, as data: results/paper/numbers.csv, each value once. Standard library only."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.core.checks import allow
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError

NUMBERS_FILE = ROOT / "results/paper/numbers.csv"
TEXTS = ("id", "source", "quantity")
"""Columns that no row may leave empty; value is a number in every row."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number that the paper states, in `unit`; None where a column says nothing about it."""

    id: str
    """The name by which claims and tables refer to it."""
    source: str
    """Where it is stated."""
    experiment: str | None
    """The part of config/paper.yaml that measures it."""
    model: str | None
    scheme: str | None
    compressor: str | None
    density: float | None
    world_size: int | None
    quantity: str
    """saving, metric, residual_share, throughput_loss, size ..."""
    value: float
    unit: str | None
    note: str | None
    digits: int = 0
    """Decimals of the printed value."""

    @property
    def rounding(self) -> float:
        """The most by which the printed value may differ from the measured one: half of its last digit."""
        return 0.5 * 10**-self.digits


COLUMNS = tuple(field.name for field in fields(Published) if field.name != "digits")
FIG_9 = ("exp1-local", "exp1-cloud")
"""Parts of the paper's first experiment: Fig. 9a and 9b."""


@lru_cache
def load_published(path: Path = NUMBERS_FILE) -> dict[str, Published]:
    """Return the published numbers by id. Raises ConfigError, with one line, if a row is invalid."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            head = tuple(reader.fieldnames or ())  # while the file is open: on an empty file this reads
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {error}; restore it from the repository") from None
    if head != COLUMNS:
        wrong = [f"{name!r} is not known" for name in head if name not in COLUMNS]
        wrong += [f"{name!r} is missing" for name in COLUMNS if name not in head] or ["they are in another order"]
        raise ConfigError(f"{path}: columns: {', '.join(wrong)}; allowed: {', '.join(COLUMNS)}")
    found: dict[str, Published] = {}
    for number, row in enumerate(rows, start=2):
        one = _published(f"{path}, row {number}", row)
        if one.id in found:
            raise ConfigError(f"{path}, row {number}: id: {one.id!r} is there twice; give each value an id of its own")
        found[one.id] = one
    return found


def published_savings(model: str) -> list[float]:
    """Return the savings, in per cent, that the paper states for ResiReduce: on 8 and on 64 GPUs if it states both."""
    numbers = load_published()
    return [numbers[name].value for part in FIG_9 if (name := f"{part}-saving-{model}") in numbers]


def _published(where: str, row: Mapping[Any, Any]) -> Published:
    if None in row or None in row.values():
        raise ConfigError(f"{where}: it has not {len(COLUMNS)} columns; quote values that hold a comma")
    values: dict[str, Any] = {name: text.strip() or None for name, text in row.items()}
    for name in TEXTS:
        if values[name] is None:
            raise ConfigError(f"{where}: {name}: empty; give a text")
    values["digits"] = len((values["value"] or "").partition(".")[2])
    for name in ("value", "density", "world_size"):
        if values[name] is not None or name == "value":
            values[name] = _number(where, name, values[name])
    if (size := values["world_size"]) is not None:
        allow(f"{where}: world_size", row["world_size"], size == int(size) and size >= 1, "a whole number from 1")
        values["world_size"] = int(size)
    return Published(**values)


def _number(where: str, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name}: {text!r} is no number; give one with a decimal point and no unit")
    return value
