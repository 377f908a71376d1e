"""The tables and figures of the paper, from `Spec`s and the records of a run: published beside measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from math import fsum
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis.claims.claim import Published, load_published
from benchmarks.analysis.grouping import first_of, grouped, starts_of
from benchmarks.analysis.labels import ABSENT, MINUS, short_labels
from benchmarks.analysis.load_run import Hole, Run, is_mixed
from benchmarks.analysis.statistics import interval
from benchmarks.analysis.table import Record, Table, setting_record
from benchmarks.analysis.tables.run_tables import distributions, mean_of, metric_of_model
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config, read_yaml
from benchmarks.core.matrix import KEYS, expand_parts
from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult
from benchmarks.core.scheme_options import thaw
from benchmarks.core.workloads import SMALL as SMALL_WORKLOADS
from resireduce.scheme import load

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


def _metric_difference(result: CellResult, other: CellResult) -> float | None:
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
DIFFERENCE = Quantity("metric_difference", "difference of the metric", _metric_difference, unit=None, compares=True)
SAVING = Quantity(
    "saving", "model states saved, %", _less("total_bytes"), compares=True, higher_is_better=True, exact=True
)
SHARE = Quantity("residual_share", "residuals in the model states, %", _share, exact=True)
SLOWER = Quantity(
    "throughput_loss", "throughput lost, %", _less("steps_per_second"), compares=True, higher_is_better=False
)
GAINED, LOST = _where_less_is_better(_less("metric")), _where_less_is_better(_metric_difference)
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


# --- The rows of a table of the paper: the paper's own, those of small models, and others that the run holds ---

PAPER, SMALL, BEYOND = "paper", "small model", "beyond the paper"
KINDS = (PAPER, SMALL, BEYOND)


@dataclass(frozen=True)
class Row:
    """A line of a table for one setting."""

    kind: str
    """One of KINDS; the last two have no published value."""
    part: str
    """Name of a part of config/paper.yaml; rows that the run adds have the table's first part."""
    label: str
    line: Line
    setting: Cell
    seeds: tuple[int, ...]
    """The seeds to run it with."""
    published: Published | None = None


def make_rows(run: Run, spec: Spec) -> list[Row]:
    """Return the rows of a table, grouped by kind and model."""
    paper = list(_paper_rows(spec))
    more = list(_more_rows(run, spec))
    models = list(dict.fromkeys(row.setting.model for row in [*paper, *more]))
    ordered = sorted([*paper, *more], key=lambda row: (KINDS.index(row.kind), models.index(row.setting.model)))
    # One row is enough where the quantity does not depend on how the model was trained.
    return list(first_of((row.setting.model, row) for row in ordered).values()) if spec.each_once else ordered


def _paper_rows(spec: Spec) -> Iterator[Row]:
    for part in spec.parts:
        settings = paper_parts()[part]
        for model in dict.fromkeys(setting.model for setting in settings):
            for line in spec.lines if model in spec.models or not spec.models else ():
                for setting, seeds in settings.items():
                    if setting.model == model and matches(setting, line.wanted):
                        stated = load_published().get(line.published.format(model=model, part=part))
                        known = stated if stated and stated.world_size in (None, setting.world_size) else None
                        yield Row(PAPER, part, line.label, line, setting, seeds, known)


def _more_rows(run: Run, spec: Spec) -> Iterator[Row]:
    """Yield rows of the run beyond the paper's: small models of any shape, others in the shape of the table's parts."""
    known = {setting for settings in paper_parts().values() for setting in settings}
    shapes = {_shape(setting) for part in spec.parts for setting in paper_parts()[part]}
    found = [
        (SMALL if setting.model in SMALL_MODELS else BEYOND, setting)
        for setting in run.settings
        if setting not in known
        and any(matches(setting, one) for one in spec.more)
        and not any(matches(setting, one) for one in spec.but)
        and (setting.model in SMALL_MODELS or _shape(setting) in shapes)
        # With random inputs the metric means nothing.
        and (setting.data == "real" or not spec.lines[0].quantity.needs_data)
    ]
    shapeless = [{name: one for name, one in line.wanted.items() if name not in SHAPE} for line in spec.lines]
    for kind, settings in sorted(grouped(found).items()):
        for setting, label in zip(settings, short_labels(settings), strict=True):
            pairs = zip(spec.lines, shapeless, strict=True)
            lines = [line for line, wanted in pairs if kind == SMALL and matches(setting, wanted)]
            for line in lines or [spec.lines[0]]:
                text = line.label if lines else label
                yield Row(kind, spec.parts[0], text, line, setting, tuple(cell.seed for cell in run.cells_of[setting]))


def _shape(setting: Cell) -> tuple[object, ...]:
    return tuple(getattr(setting, name) for name in SHAPE)


CONFIG = ROOT / "benchmarks/config/paper.yaml"
SMALL_MODELS = tuple(workload.model for workload in SMALL_WORKLOADS)
"""Models of the quick matrices, which stand in for the paper's in rows of their own."""


@lru_cache
def paper_parts() -> dict[str, dict[Cell, tuple[int, ...]]]:
    """Return the settings of each part (cells with seed 0), each with its seeds."""
    config = read_config(CONFIG)
    parts = expand_parts({key: config[key] for key in KEYS if key in config})
    seeds = {part: grouped((replace(cell, seed=0), cell.seed) for cell in cells) for part, cells in parts.items()}
    return {part: {setting: tuple(those) for setting, those in found.items()} for part, found in seeds.items()}


# --- Turn a row into its record ---

PUBLISHED = {"": "value", "_unit": "unit", "_id": "id", "_source": "source"}
"""Suffixes of the columns with published values, and the field that each column shows."""


def make_record(run: Run, spec: Spec, row: Row) -> Record:
    """Return the raw values of a row."""
    results, metric = run.settings.get(row.setting, []), metric_of_model(run, row.setting.model)
    quantity, name = row.line.quantity, metric["metric_name"]
    other = row.line.against(row.setting) if row.line.against else None
    others = run.settings.get(other, []) if other else []
    values = quantity.by_seed(results, others)
    better = metric["higher_is_better"] if quantity.unit is None else None
    return {
        **setting_record(row.setting, results),
        "kind": row.kind,
        "line": row.label,
        "part": row.part,
        "quantity": quantity.name,
        "unit": quantity.unit or UNITS.get(name, name) or (row.published.unit if row.published else None),
        "metric_name": name,
        "higher_is_better": better if quantity.higher_is_better is None else quantity.higher_is_better,
        **{f"published{end}": getattr(row.published, name, None) for end, name in PUBLISHED.items()},
        **_interval("measured", values),
        "values": {str(seed): value for seed, value in values.items()},
        **_compared(run, spec, row, results),
        "hardware": _hardware([*results, *others]) if results else None,
        "seeds_wanted": len(row.seeds),
        **_missing(run, row, other, values),
    }


def _interval(name: str, values: Mapping[int, float]) -> Record:
    found = interval([values[seed] for seed in sorted(values)])
    return {
        name: found.mean if found else None,
        f"{name}_half_width": found.half_width if found else None,
        f"{name}_n": found.n if found else 0,
    }


def _compared(run: Run, spec: Spec, row: Row, results: Sequence[CellResult]) -> Record:
    """Return the difference from another setting's metric, seed by seed, and the verdict of its interval."""
    if spec.compared is None:
        return {}
    other = spec.compared[1](row.setting)
    others = run.settings.get(other, []) if other != row.setting else []
    values = DIFFERENCE.by_seed(results, others) if row.line.quantity.unit is None else {}
    found = interval([values[seed] for seed in sorted(values)])
    return {**_interval("difference", values), "verdict": found.verdict if found else None}


def _hardware(results: Sequence[CellResult]) -> str:
    return "; ".join(sorted({str(result.provenance.get("device") or "device not recorded") for result in results}))


WORDS = {"node-fail": "node lost"}


def _missing(run: Run, row: Row, other: Cell | None, values: Mapping[int, float]) -> Record:
    """Return the cells without a measurement, of the setting and of the one that it is compared with."""
    own = missing_cells(run, row.setting, row.seeds, row.part)
    beside = missing_cells(run, other, row.seeds, row.part) if other else []
    text = None if values else "its records have no such value"
    if own or beside:
        by_status = grouped((WORDS.get(one["status"], one["status"]), one["seed"]) for one in own or beside)
        text = ", ".join(f"{status} (seed {', '.join(map(str, seeds))})" for status, seeds in by_status.items())
        if len(by_status) == 1 and len(own or beside) == len(row.seeds):
            text = next(iter(by_status))
        text = text if own else f"to compare with: {text}"
    commands = list(dict.fromkeys(one["command"] for one in [*own, *beside]))
    return {
        "missing": text,
        "missing_cells": own + [one | {"setting": other.name} for one in beside if other],
        "command": None if not commands else commands[0] if len(commands) == 1 else part_command(row.part),
    }


def missing_cells(run: Run, setting: Cell, seeds: Sequence[int], part: str) -> list[dict[str, Any]]:
    """Return seed, status, reason and command of each cell of a setting that has no measurement."""
    found = []
    for cell in (replace(setting, seed=seed) for seed in seeds):
        if cell not in run.results:
            hole = run.holes.get(cell) or Hole(cell.name, "not run", "no cell of this run", part_command(part))
            found.append({"seed": cell.seed, **{name: getattr(hole, name) for name in ("status", "reason", "command")}})
    return found


def part_command(part: str) -> str:
    """Return the command that measures a part of config/paper.yaml on this machine."""
    return f"make run RUN=paper PART={part}"


# --- Extras of single tables of the paper: columns of their own, or another figure ---

POINTS = 200
"""Most points that a curve has."""
DENSITIES = "benchmarks.analysis.charts.curves_chart:densities_chart"


def times(results: list[CellResult]) -> Record:
    """Return the mean wall time of a setting's trainings, and its mean metric over the seeds at each step."""
    average = mean([float(result.wall_seconds or 0) / 3600 for result in results]) if results else None
    return {
        "hours": average,
        "hours_text": "" if average is None else f"{average:.2f}" if average >= 0.1 else f"{average:.4f}",
        "steps_taken": max((result.steps for result in results), default=None),
        "curve": _curve(results),
    }


def _curve(results: list[CellResult]) -> list[list[float]]:
    """Return [step, mean metric] for steps at which every seed was measured, thinned to POINTS."""
    pairs = (pair for result in results for pair in result.metric_history)
    seen = grouped((step, value) for step, value in pairs if step is not None and value is not None)
    points = [
        [step, fsum(values) / len(values)] for step, values in sorted(seen.items()) if len(values) == len(results)
    ]
    every = -(-len(points) // POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def speeds(results: list[CellResult]) -> Record:
    """Return a setting's images or tokens per second, mean over its seeds."""
    speed, unit = mean_of(results, "units_per_second"), results[0].unit if results else None
    text = "" if speed is None else f"{speed:,.0f} {unit}"
    return {"throughput": speed, "throughput_unit": unit, "throughput_text": text}


def with_densities(table: Table, run: Run) -> Table:
    """Return Fig. 4 with the densities of groups as its figure, from each model's first observed cell, if any."""
    records = distributions(run).records
    places = [place for place, record in enumerate(records) if record["group"] == "all"]
    cells = [records[start:end] for start, end in pairwise([*places, len(records)])]
    drawn = [record for cell in first_of((its[0]["model"], its) for its in cells).values() for record in cell]
    return replace(table, drawn=drawn, figure=DENSITIES) if drawn else table


# --- Make a table of the paper from a `Spec` and a run; one function serves all tables and figures ---

HEAD = ("Model", "Line", "Ranks", "Published", "Measured", "± 95 %", "n")
TAIL = ("Hardware", "Missing")
MARKS = {PAPER: "", SMALL: " (small model, no published value)", BEYOND: " (beyond the paper)"}


def make_table(run: Run, spec: Spec) -> Table:
    """Return a table of the paper for a run; it has all rows, whatever the run holds."""
    rows = make_rows(run, spec)
    records = [make_record(run, spec, row) for row in rows]
    if spec.extra:
        extra = load(spec.extra)
        of_rows = [run.settings.get(row.setting, []) for row in rows]
        records = [record | extra(results) for record, results in zip(records, of_rows, strict=True)]
    starts = starts_of([(row.kind, row.setting.model) for row in rows])
    body = [
        [row.setting.model + MARKS[row.kind] if i in starts else "", *_texts(spec, row, record)]
        for i, (row, record) in enumerate(zip(rows, records, strict=True))
    ]
    middle = [spec.compared[0]] if spec.compared else []
    # The figure has the models with a measured value; the table also has the published values of the others.
    shown = [record for record in records if record["quantity"] == spec.lines[0].quantity.name]
    known = {record["model"] for record in shown if record["measured"] is not None}
    return Table(
        name=spec.name,
        title=spec.title,
        reading=spec.reading,
        records=records,
        head=[*HEAD, *middle, *(heading for heading, _ in spec.columns), *TAIL],
        body=body,
        figure=spec.figure,
        drawn=[record for record in shown if record["model"] in known],
        text_columns=2,
        group_starts=starts,
        notes=[*spec.notes, *_stated(spec), *_about(run, rows, records)],
        **_make_missing(records),
    )


def _texts(spec: Spec, row: Row, record: Record) -> list[str]:
    value, half_width, digits = record["measured"], record["measured_half_width"], row.line.quantity.digits
    unit = f" {record['unit']}" if record["unit"] else ""
    return [
        row.label,
        str(row.setting.world_size),
        f"{row.published.value:g} {row.published.unit or ''}".strip() if row.published else "",
        ABSENT if value is None else f"{value:.{digits}f}".replace("-", MINUS) + unit,
        f"{half_width:.{digits}f}" if half_width is not None else "",
        str(record["measured_n"] or ""),
        *([_difference(record)] if spec.compared else []),
        *(record[column] or "" for _, column in spec.columns),
        record["hardware"] or "",
        record["missing"] or "",
    ]


def _difference(record: Record) -> str:
    value, half_width = record["difference"], record["difference_half_width"]
    if value is None:
        return ""
    text = f"{'+' if value > 0 else MINUS if value < 0 else '±'}{abs(value):.2f}"
    return text + (f" ± {half_width:.2f}: {record['verdict']}" if half_width is not None else f", {record['verdict']}")


def _stated(spec: Spec) -> list[str]:
    """Return notes on published values that concern several rows."""
    texts = [
        f"{one.quantity.replace('_', ' ')} {one.value:g} {one.unit or ''}".rstrip()
        + f" ({one.source}{f': {one.note}' if one.note else ''})"
        for one in (load_published()[name] for name in spec.stated)
    ]
    return [f"The paper also states: {'; '.join(texts)}."] if texts else []


def _about(run: Run, rows: Sequence[Row], records: Sequence[Record]) -> list[str]:
    notes = []
    shown = [result for row in rows for result in run.settings.get(row.setting, [])]
    if is_mixed(shown):
        notes.append("Its records come from different commits, software or devices: compare rows with care.")
    exact = all(row.line.quantity.exact for row in rows)
    if shown and not exact and all(record["measured_n"] <= 1 for record in records):
        notes.append("One seed each (n = 1): no interval, and small differences mean nothing.")
    return notes


def _make_missing(records: Sequence[Record]) -> dict[str, Any]:
    """Return which of the paper's rows lack a value, and the commands that fill them, by part of paper.yaml."""
    missing = [one for one in records if one["kind"] == PAPER and one["missing"]]
    if not missing:
        return {}
    chosen = ",".join(dict.fromkeys(one["part"] for one in missing))
    # Without rows whose cells belong to the run itself.
    apart = [(one["part"], one["model"], [cell["command"] for cell in one["missing_cells"]]) for one in missing]
    others = grouped((part, model) for part, model, commands in apart if part_command(part) in commands)
    lacks = [
        (f"{len(models)} row{'s' if len(models) > 1 else ''} of {', '.join(dict.fromkeys(models))}", part_command(part))
        for part, models in others.items()
    ]
    on_cluster = f"snakemake --profile slurm --config part={chosen}"
    return {
        "fills": f"What is missing here: {part_command(chosen)}, or on a cluster: {on_cluster}",
        "lacks": tuple(lacks),
    }
