"""Which rows a table of the paper has for a run: the paper's own, always; and those that the run adds to them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from benchmarks.cell import Cell
from benchmarks.report.labels import short_labels
from benchmarks.report.load import Run
from benchmarks.report.paper.parts import SMALL_MODELS, paper_parts
from benchmarks.report.paper.spec import SHAPE, Line, Spec, matches
from benchmarks.report.published import Published, load_published

PAPER, SMALL, BEYOND = "paper", "small model", "beyond the paper"
KINDS = (PAPER, SMALL, BEYOND)


@dataclass(frozen=True)
class Row:
    """A line of a table for one setting."""

    kind: str
    """One of KINDS; the last two have no published value."""
    part: str
    """Of config/paper.yaml; for a row that the run adds, the first of the table's."""
    label: str
    line: Line
    setting: Cell
    seeds: tuple[int, ...]
    """Those that it is to be run with."""
    published: Published | None = None


def make_rows(run: Run, spec: Spec) -> list[Row]:
    """Return the rows of a table: those of one kind and model together."""
    paper = list(_paper_rows(spec))
    more = list(_more_rows(run, spec))
    models = list(dict.fromkeys(row.setting.model for row in [*paper, *more]))
    place = {model: number for number, model in enumerate(models)}
    ordered = sorted([*paper, *more], key=lambda row: (KINDS.index(row.kind), place[row.setting.model]))
    return _one_of_each(ordered) if spec.each_once else ordered


def _paper_rows(spec: Spec) -> Iterator[Row]:
    for part in spec.parts:
        settings = paper_parts()[part]
        for model in dict.fromkeys(setting.model for setting in settings):
            if spec.models and model not in spec.models:
                continue
            for line in spec.lines:
                for setting, seeds in settings.items():
                    if setting.model == model and matches(setting, line.wanted):
                        yield Row(PAPER, part, line.label, line, setting, seeds, published(line, setting))


def _more_rows(run: Run, spec: Spec) -> Iterator[Row]:
    """What the run has beside the paper's: small models in any shape, others in the shape of the table's parts."""
    known = {setting for settings in paper_parts().values() for setting in settings}
    shapes = {_shape(setting) for part in spec.parts for setting in paper_parts()[part]}
    found = [
        (SMALL if setting.model in SMALL_MODELS else BEYOND, setting)
        for setting in run.settings()
        if setting not in known
        and spec.more(setting)
        and (setting.model in SMALL_MODELS or _shape(setting) in shapes)
        and _readable(spec, setting)
    ]
    seeds = run.seeds()
    for kind, group in groupby(sorted(found, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        settings = [setting for _, setting in group]
        for setting, label in zip(settings, short_labels(settings), strict=True):
            lines = [line for line in spec.lines if kind == SMALL and matches(setting, _without_shape(line))]
            for line in lines or [spec.lines[0]]:
                text = line.label if lines else label
                yield Row(kind, spec.parts[0], text, line, setting, seeds[setting])


def _readable(spec: Spec, setting: Cell) -> bool:
    """Random inputs have no metric that means anything."""
    return setting.data == "real" or not spec.lines[0].quantity.needs_data


def _shape(setting: Cell) -> tuple[object, ...]:
    return tuple(getattr(setting, name) for name in SHAPE)


def _without_shape(line: Line) -> dict[str, object]:
    return {name: value for name, value in line.wanted.items() if name not in SHAPE}


def published(line: Line, setting: Cell) -> Published | None:
    """Return what the paper states of a line for a setting's model and number of ranks, if it does."""
    one = load_published().get(line.published.format(model=setting.model)) if line.published else None
    return one if one and one.world_size in (None, setting.world_size) else None


def _one_of_each(rows: list[Row]) -> list[Row]:
    """The first row of each model: for what does not depend on how it was trained."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.setting.model, row)
    return list(first.values())
