"""Find figures that a record gives in two disagreeing forms, as after an edit by hand. Imports no torch."""

from collections.abc import Iterator

from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

EXACT = 1e-6
"""Largest relative difference between two forms of one figure that were computed from each other."""
ANSWERS = 1e-9
"""Largest difference from a whole number of answers, by rounding alone: up to 6e-14 in 1,079 shares of small models."""
HELD_OUT = {
    ("resnet-digits", "accuracy"): 449,
    ("vgg-digits", "accuracy"): 449,
    ("bert-questions", "exact_match"): 500,
}
"""Number of held-out answers by small model and metric; the metric is a share of this number."""


def contradictions(record: CellResult) -> Iterator[str]:
    """Yield one line for each contradiction between two statements of a finished record."""
    yield from of_another_cell(record)
    yield from _of_another_speed(record)
    yield from _of_other_answers(record)


def of_another_cell(record: CellResult) -> Iterator[str]:
    """Yield a line if a record, finished or not, was measured for another cell than its own."""
    content = record.provenance.get("content")
    if not isinstance(content, dict) or "cell" not in content:
        return
    try:
        name = Cell.from_dict(content["cell"]).name
    except ConfigError as error:
        yield f"provenance: its content names no cell ({error})"
        return
    if name != record.cell.name:
        yield f"provenance: it was measured for {name}, and is called {record.cell.name}"


def _of_another_speed(record: CellResult) -> Iterator[str]:
    """Check that each rank takes the same whole number of units (images, tokens) in a step."""
    if not record.units_per_second or not record.steps_per_second:
        return
    units = record.units_per_second / record.steps_per_second / record.cell.world_size
    if units < 1 or abs(units - round(units)) > EXACT * units:
        yield f"units_per_second: {units:.6g} a step and rank, by its steps_per_second; it must be a whole number"


def _of_other_answers(record: CellResult) -> Iterator[str]:
    f1, exact = record.metrics.get("f1"), record.metrics.get("exact_match")
    if f1 is not None and exact is not None and f1 < exact * (1 - EXACT):
        yield f"metrics: f1 is {f1:.6g}, less than exact_match, {exact:.6g}"
    for name, value in {**record.metrics, str(record.metric_name): record.metric}.items():
        count = HELD_OUT.get((record.cell.model, name))
        if count is None or record.cell.data != "real" or record.cell.released:  # some of those are means over batches
            continue
        of_metric = [last for _, last in record.metric_history] if name == record.metric_name else []
        for one in (value, *of_metric):
            right = (one or 0) * count / 100
            if abs(right - round(right)) > ANSWERS:
                yield f"{name}: {one:.12g} % of {count} is {right:.12g}, and not a whole number of right answers"
                return
