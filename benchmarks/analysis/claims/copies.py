"""Find records of one training under several names by their history: the metric of each evaluation.

Only kept and streamed gradients, and settings that change no sum, may give equal histories: cells of other seeds, of
residuals of other sizes, or that send other elements, do not, except by chance where a metric is a share of a few
hundred answers. Divergences are copies if they took the seconds of each other, or of the first steps of a training that
finished. Noise below what `benchmarks.analysis.near` allows makes no other history.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from benchmarks.analysis.claims.contradictions import HELD_OUT
from benchmarks.analysis.claims.planned import planned_residuals
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Hole
from benchmarks.analysis.near import FIGURE, HISTORY, are_near, near_groups
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from resireduce.scheme import COMPRESSORS

EVALUATIONS = 3
"""Fewest different values of a history that is compared: the first steps of many trainings end with one accuracy."""
EXACT = 2
"""Fewest of perplexities, which have so many digits that they are compared in all of them if there are fewer than 3."""
FEWEST = 2
"""Fewest steps whose seconds tell two trainings apart."""

SIZED = ("baseline", "w", "2d", "w+2d")
"""Schemes whose residuals are the same where they have the same size by plan; those of others differ in values."""


def copies(records: Sequence[CellResult]) -> list[list[CellResult]]:
    """Return the groups of records of one model that share a history, one record of each training in it."""
    found = [grouped((_training(one), one) for one in those) for those in same_histories(records) if _are_one(those[0])]
    return [[one for same in trainings.values() for one in same] for trainings in found if len(trainings) > 1]


def same_histories(records: Sequence[CellResult]) -> list[list[CellResult]]:
    """Return records of one model by their histories; short ones are the same only if they are equal."""
    told = [one for one in records if _tells(one)]
    others = grouped((str([[*pair] for pair in one.metric_history]), one) for one in records if not _tells(one))
    return [*near_groups([(_figures(one), one) for one in told], HISTORY), *others.values()]


def _figures(record: CellResult) -> list[float]:
    """Return the values of a history, then its steps."""
    steps, values = zip(*record.metric_history, strict=True)
    return [float(figure or 0) for figure in (*values, *steps)]


def copied(records: Sequence[CellResult]) -> str | None:
    """Return which records of one comparison are of one training; None if none are, or one pair by chance."""
    found = copies(records)
    pairs = sum(len({_training(one) for one in alike}) - 1 for alike in found)
    return same_history(found[0]) if pairs > (1 if found and is_coarse(found[0][0]) else 0) else None


def not_by_chance(found: Sequence[list[CellResult]]) -> list[list[CellResult]]:
    """Return the groups of records that share a history, without those of a whole run that may agree by chance.

    Where metrics are shares of a few hundred answers, one of 10,000 pairs agrees by chance. Two settings that agree in
    two seeds do not.
    """
    often = Counter(pair for alike in found for pair in _settings(alike))
    return [alike for alike in found if not is_coarse(alike[0]) or any(often[pair] > 1 for pair in _settings(alike))]


def _settings(alike: Sequence[CellResult]) -> Iterator[frozenset[Cell]]:
    """Yield each two settings of other trainings that share a history with the same seed."""
    for one, other in combinations(alike, 2):
        if one.cell.seed == other.cell.seed and _training(one) != _training(other):
            yield frozenset((replace(one.cell, seed=0), replace(other.cell, seed=0)))


def same_history(alike: Sequence[CellResult]) -> str:
    """Return what is said of records that share a history."""
    names = sorted(one.cell.name for one in alike)
    return f"{' and '.join(names)} have the same history: they are one training"


def is_coarse(record: CellResult) -> bool:
    """Return whether a metric has so few values that two trainings may agree by chance."""
    return (record.cell.model, record.metric_name) in HELD_OUT


def _training(record: CellResult) -> Hashable:
    """Return what two cells share that may train alike: the seed, residuals of one size by plan, and what is sent.

    Compressors that send all elements may be so exact that they train alike; lossless packing changes nothing.
    """
    cell = record.cell
    some = COMPRESSORS[cell.compressor].selects and cell.density < 1
    sent = (cell.compressor.partition("+")[0], cell.density) if some else None
    residuals = planned_residuals(cell) if cell.scheme in SIZED else None
    return cell.seed, residuals or cell.scheme, sent


def _are_one(record: CellResult) -> bool:
    """Return whether records with the history of this one, by `same_histories`, can only be one training."""
    return _different(record) >= (EXACT if record.metric_name == "perplexity" else EVALUATIONS)


def _tells(record: CellResult) -> bool:
    return _different(record) >= EVALUATIONS


def _different(record: CellResult) -> int:
    return len({value for _, value in record.metric_history})


def copied_divergences(holes: Mapping[Cell, Hole], results: Mapping[Cell, CellResult]) -> dict[Cell, Hole]:
    """Return, with the reason in `doubt`, the holes of trainings that diverged and took the seconds of other ones."""
    ended = {cell: hole for cell, hole in holes.items() if hole.has_diverged and len(hole.seconds) >= FEWEST}
    found = {}
    for cell, other in _pairs(ended, results):
        doubt = f"its steps took the same seconds as those of {other.name}: one training, not 2"
        found[cell] = replace(ended[cell], doubt=doubt)
    return found


def _pairs(ended: Mapping[Cell, Hole], results: Mapping[Cell, CellResult]) -> Iterator[tuple[Cell, Cell]]:
    """Yield each cell that diverged, and another one whose training it is."""
    for alike in near_groups([(hole.seconds, cell) for cell, hole in ended.items()], FIGURE):
        ordered = sorted(alike, key=lambda one: one.name)
        yield from ((cell, next(one for one in ordered if one != cell)) for cell in ordered if len(ordered) > 1)
    for cell, hole in ended.items():
        for other, result in results.items():
            if are_near(result.step_seconds[: len(hole.seconds)], hole.seconds, FIGURE):
                yield cell, other
