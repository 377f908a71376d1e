"""The quantities that the paper's tables show of a setting, one value per seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.core.record import CellResult

OTHER = CellResult | None
UNITS = {"top1": "%", "accuracy": "%", "f1": "F1", "perplexity": "ppl"}
"""Units of metrics, as the paper writes them."""


@dataclass(frozen=True)
class Quantity:
    """A value computed from one record, or from it and the record of the same seed that it is compared with."""

    name: str
    words: str
    """Heading of a figure's axis."""
    of: Callable[[Any, Any], float | None]
    """Takes the record and, if `compares`, the other one; returns None where there is no value."""
    unit: str | None = "%"
    """None: the unit of the model's metric."""
    digits: int = 2
    compares: bool = False
    """Whether it needs the record of the same seed in another setting."""
    exact: bool = False
    """Whether all seeds have the same value."""
    needs_data: bool = False
    """Whether it means nothing if the inputs were random."""
    higher_is_better: bool | None = None
    """None: as for the metric, or neither direction is better."""

    def by_seed(self, results: Sequence[CellResult], others: Sequence[CellResult]) -> dict[int, float]:
        """Return the value of each seed that has one."""
        other = {result.cell.seed: result for result in others}
        found = {}
        for result in results:
            beside = other.get(result.cell.seed)
            value = None if self.compares and beside is None else self.of(result, beside)
            if value is not None:
                found[result.cell.seed] = value
        return found


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _less(name: str) -> Callable[[CellResult, CellResult], float | None]:
    """Return a function for the per cent by which a number of a record is less than the other's."""

    def less(result: CellResult, other: CellResult) -> float | None:
        ratio = _ratio(getattr(result, name), getattr(other, name))
        return None if ratio is None else 100 * (1 - ratio)

    return less


def _share(result: CellResult, other: OTHER) -> float | None:
    ratio = _ratio(result.residuals_bytes, result.total_bytes)
    return None if ratio is None else 100 * ratio


def _better(result: CellResult, other: CellResult) -> float | None:
    """Return the gain in per cent of the other's metric; more than 0 is better."""
    less = _less("metric")(result, other)
    return None if less is None else less * (-1 if result.higher_is_better else 1)


def _difference(result: CellResult, other: CellResult) -> float | None:
    return None if result.metric is None or other.metric is None else result.metric - other.metric


def _worse_by(result: CellResult, other: CellResult) -> float | None:
    """Return the loss in points of the metric; more than 0 is worse."""
    difference = _difference(result, other)
    return None if difference is None else difference * (-1 if result.higher_is_better else 1)


def _apart(result: CellResult, other: OTHER) -> float | None:
    """Return how far apart residuals of different groups are, relative to those of one group (1-Wasserstein)."""
    seen = result.observations.get("distributions") or {}
    within, between = (seen.get(pairs) or {} for pairs in ("within", "between"))
    return _ratio(between.get("wasserstein"), within.get("wasserstein"))


METRIC = Quantity("metric", "metric", lambda result, other: result.metric, unit=None, needs_data=True)
DIFFERENCE = Quantity("metric_difference", "difference of the metric", _difference, unit=None, compares=True)
SAVING = Quantity(
    "saving", "model states saved, %", _less("total_bytes"), compares=True, higher_is_better=True, exact=True
)
SHARE = Quantity("residual_share", "residuals in the model states, %", _share, exact=True)
SLOWER = Quantity(
    "throughput_loss", "throughput lost, %", _less("steps_per_second"), compares=True, higher_is_better=False
)
GAIN = Quantity("metric_gain", "metric gained, % of it", _better, compares=True, higher_is_better=True)
DROP = Quantity("metric_loss", "metric lost, points", _worse_by, unit=None, compares=True, higher_is_better=False)
APART = Quantity("between_within_ratio", "distance between groups / within", _apart, unit="ratio", digits=1)
SIZE = Quantity("size", "parameters, MiB", lambda result, other: result.parameters_bytes / 2**20, "MiB", exact=True)
ALL = {one.name: one for one in (METRIC, DIFFERENCE, SAVING, SHARE, SLOWER, GAIN, DROP, APART, SIZE)}
"""Quantities by their name in paper/tables.yaml."""
