"""The rows of a table of the paper: the paper's own, those of small models, and others that the run holds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks.analysis.grouping import first_of, grouped
from benchmarks.analysis.labels import short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.paper.spec import SHAPE, Line, Spec, matches
from benchmarks.analysis.published import Published, load_published
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import KEYS, expand_parts
from benchmarks.core.paths import ROOT
from benchmarks.core.workloads import SMALL as SMALL_WORKLOADS

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
            if spec.models and model not in spec.models:
                continue
            for line in spec.lines:
                for setting, seeds in settings.items():
                    if setting.model == model and matches(setting, line.wanted):
                        yield Row(PAPER, part, line.label, line, setting, seeds, published(line, setting, part))


def _more_rows(run: Run, spec: Spec) -> Iterator[Row]:
    """Yield rows of the run beyond the paper's: small models of any shape, others in the shape of the table's parts."""
    known = {setting for settings in paper_parts().values() for setting in settings}
    shapes = {_shape(setting) for part in spec.parts for setting in paper_parts()[part]}
    found = [
        (SMALL if setting.model in SMALL_MODELS else BEYOND, setting)
        for setting in run.settings()
        if setting not in known
        and any(matches(setting, one) for one in spec.more)
        and not any(matches(setting, one) for one in spec.but)
        and (setting.model in SMALL_MODELS or _shape(setting) in shapes)
        # With random inputs the metric means nothing.
        and (setting.data == "real" or not spec.lines[0].quantity.needs_data)
    ]
    seeds = run.seeds()
    for kind, settings in sorted(grouped(found).items()):
        for setting, label in zip(settings, short_labels(settings), strict=True):
            lines = [line for line in spec.lines if kind == SMALL and matches(setting, _without_shape(line))]
            for line in lines or [spec.lines[0]]:
                text = line.label if lines else label
                yield Row(kind, spec.parts[0], text, line, setting, seeds[setting])


def _shape(setting: Cell) -> tuple[object, ...]:
    return tuple(getattr(setting, name) for name in SHAPE)


def _without_shape(line: Line) -> dict[str, object]:
    return {name: value for name, value in line.wanted.items() if name not in SHAPE}


def published(line: Line, setting: Cell, part: str) -> Published | None:
    """Return the value that the paper states for a line, model and number of ranks, or None."""
    one = load_published().get(line.published.format(model=setting.model, part=part)) if line.published else None
    return one if one and one.world_size in (None, setting.world_size) else None


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
