"""The tables and figures of the paper as data: their quantities, their specification, and paper/tables.yaml."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.record import CellResult
from benchmarks.core.scheme_options import thaw

# --- The quantities that the paper's tables show of a setting, one value per seed ---


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
        both = ((one.cell.seed, one, other.get(one.cell.seed)) for one in results)
        found = {seed: self.of(one, beside) for seed, one, beside in both if beside or not self.compares}
        return {seed: value for seed, value in found.items() if value is not None}


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


def _difference(result: CellResult, other: CellResult) -> float | None:
    return None if result.metric is None or other.metric is None else result.metric - other.metric


def _where_less_is_better(of: Callable[[CellResult, CellResult], float | None]) -> Any:
    """Return a function for a quantity whose sign is turned where a higher metric is better."""

    def turned(result: CellResult, other: CellResult) -> float | None:
        value = of(result, other)
        return None if value is None else value * (-1 if result.higher_is_better else 1)

    return turned


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
GAINED, LOST = _where_less_is_better(_less("metric")), _where_less_is_better(_difference)
GAIN = Quantity("metric_gain", "metric gained, % of it", GAINED, compares=True, higher_is_better=True)
DROP = Quantity("metric_loss", "metric lost, points", LOST, unit=None, compares=True, higher_is_better=False)
APART = Quantity("between_within_ratio", "distance between groups / within", _apart, unit="ratio", digits=1)
SIZE = Quantity("size", "parameters, MiB", lambda result, other: result.parameters_bytes / 2**20, "MiB", exact=True)
ALL = {one.name: one for one in (METRIC, DIFFERENCE, SAVING, SHARE, SLOWER, GAIN, DROP, APART, SIZE)}
"""Quantities by their name in paper/tables.yaml."""


# --- The specification of a table of the paper ---


Wanted = Mapping[str, Any]
"""Fields of a cell and their values; a list means any of its values."""
USUAL_DENSITY = 0.01
SHAPE = ("world_size", "nodes", "backend", "steps", "data", "batch_per_rank", "length")
"""Fields for the size and length of a training, which do not affect how its gradients are treated."""


@dataclass(frozen=True)
class Line:
    """A row of a table for each model, or several if cells differ in fields that `wanted` leaves open."""

    label: str
    wanted: Wanted
    quantity: Quantity = METRIC
    against: Callable[[Cell], Cell] | None = None
    """For a quantity that compares: maps a setting to the one that it is compared with."""
    published: str = ""
    """Id of the published value, with placeholders {model} and {part}; "" if there is none."""


@dataclass(frozen=True)
class Spec:
    """A table of the paper."""

    name: str
    title: str
    reading: str
    parts: Sequence[str]
    """Parts of config/paper.yaml whose cells the table shows."""
    lines: Sequence[Line]
    more: Sequence[Wanted]
    """Settings of a run that belong to the table although the paper has no such row: those that match any of these,"""
    but: Sequence[Wanted] = ()
    """and none of these."""
    models: Sequence[str] = ()
    """The models to show, if not all of the parts' models."""
    each_once: bool = False
    """Whether each model has only one row, because the values do not depend on its training."""
    compared: tuple[str, Callable[[Cell], Cell]] | None = None
    """A further column: its heading, and the setting whose metric is subtracted, seed by seed."""
    extra: str = ""
    """Function from the results of a row's setting to further columns of its record, as "module:function"."""
    columns: Sequence[tuple[str, str]] = ()
    """Further columns: heading, and the text column of the records."""
    stated: Sequence[str] = ()
    """Ids of published values that belong to no single row; they are stated below the table."""
    figure: str = "benchmarks.analysis.charts.rows_chart:values_chart"
    notes: Sequence[str] = ()


def matches(setting: Cell, wanted: Wanted) -> bool:
    """Say whether a setting has the wanted values."""

    def fits(name: str, value: Any) -> bool:
        if name == "options":
            return bool(thaw(setting.options) == value)
        if name == "observe":
            return set(value) <= set(setting.observe)
        return getattr(setting, name) in value if isinstance(value, list) else bool(getattr(setting, name) == value)

    return all(fits(name, value) for name, value in wanted.items())


def other(values: Wanted, setting: Cell) -> Cell:
    """Return the setting with these values, and with the usual density if it was without compression."""
    usual = {"density": USUAL_DENSITY} if setting.compressor == "none" else {}
    return replace(setting, **{**usual, **values})


# --- Read paper/tables.yaml: the tables and figures of the paper as data ---


SPECS_FILE = Path(__file__).with_name("tables.yaml")


@lru_cache
def load_specs() -> dict[str, Spec]:
    """Return the specifications by name, in file order."""
    values = read_yaml(SPECS_FILE)
    tables, settings = values["tables"], values["settings"]
    entries = {name: tables.get(given.get("like"), {}) | given for name, given in tables.items()}
    return {name: _spec(name, dict(entry), settings) for name, entry in entries.items()}


def _spec(name: str, entry: dict[str, Any], settings: Mapping[str, Wanted]) -> Spec:
    column, common = entry.pop("compared", None), {key: entry.pop(key, None) for key in ("quantity", "against", "like")}
    return Spec(
        name=name,
        lines=[_line({**common, **line}, settings) for line in entry.pop("lines")],
        more=[merged(one, settings) for one in entry.pop("more")],
        but=[merged(one, settings) for one in entry.pop("but", ())],
        compared=(column["heading"], partial(other, merged(column["to"], settings))) if column else None,
        **entry,
    )


def _line(given: Mapping[str, Any], settings: Mapping[str, Wanted]) -> Line:
    return Line(
        label=str(given["label"]),
        wanted=merged(given["of"], settings),
        quantity=ALL[given["quantity"] or "metric"],
        against=partial(other, merged(given["against"], settings)) if given["against"] else None,
        published=given.get("published", ""),
    )


def merged(given: Any, settings: Mapping[str, Wanted]) -> Wanted:
    """Return cell fields and their values from one mapping, or from a list of mappings and names in `settings`."""
    found: dict[str, Any] = {}
    for one in given if isinstance(given, list) else [given]:
        found |= settings[one] if isinstance(one, str) else one
    return found
