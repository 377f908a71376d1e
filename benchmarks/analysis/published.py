"""The numbers that the paper states, as data: results/paper/numbers.csv, each value once. Standard library only."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks.core.paths import ROOT

NUMBERS_FILE = ROOT / "results/paper/numbers.csv"


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


FIG_9 = ("exp1-local", "exp1-cloud")
"""Parts of the paper's first experiment: Fig. 9a and 9b."""


@lru_cache
def load_published() -> dict[str, Published]:
    """Return the published numbers by id."""
    with NUMBERS_FILE.open(encoding="utf-8", newline="") as file:
        return {row["id"]: _published(row) for row in csv.DictReader(file, strict=True)}


def published_savings(model: str) -> list[float]:
    """Return the savings, in per cent, that the paper states for ResiReduce: on 8 and on 64 GPUs if it states both."""
    numbers = load_published()
    return [numbers[name].value for part in FIG_9 if (name := f"{part}-saving-{model}") in numbers]


def _published(row: Mapping[str, str]) -> Published:
    values: dict[str, Any] = {name: text.strip() or None for name, text in row.items()}
    digits = len(values["value"].partition(".")[2])
    for name, kind in (("value", float), ("density", float), ("world_size", int)):
        values[name] = None if values[name] is None else kind(values[name])
    return Published(**values, digits=digits)
