"""Find records of one training under several names by their history: the metric of each evaluation.

Only kept and streamed gradients, and settings that change no sum, may give equal histories: cells of other seeds, of
residuals of other sizes, or that send other elements, do not, except by chance where a metric is a share of a few
hundred answers.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from benchmarks.analysis.claims.planned import planned_residuals
from benchmarks.analysis.grouping import grouped
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from resireduce.scheme import COMPRESSORS

EVALUATIONS = 3
"""Fewest different values of a history that is compared: the first steps of many trainings end with one accuracy."""
EXACT = 2
"""Fewest of perplexities, which have so many digits that they do not agree by chance."""
COARSE = "accuracy"
"""The metric that is a share of a few hundred answers, so that one of 10,000 pairs of trainings agrees by chance."""

SIZED = ("baseline", "w", "2d", "w+2d")
"""Schemes whose residuals are the same where they have the same size by plan; those of others differ in values."""


def same_histories(records: Iterable[CellResult]) -> list[list[CellResult]]:
    """Return records of one model by their histories."""
    return list(grouped((str([[*pair] for pair in one.metric_history]), one) for one in records).values())


def doubled(records: Iterable[CellResult]) -> dict[Cell, str]:
    """Return which of these records have the history of another training, and what is said of them.

    Two settings may agree once by chance in a coarse metric, not twice.
    """
    found: list[list[CellResult]] = []
    for those in grouped((one.cell.model, one) for one in records).values():
        found += [alike for alike in same_histories(those) if _tells(alike[0]) and len({*map(_training, alike)}) > 1]
    often = Counter(pair for alike in found for pair in _settings(alike))
    sure = [one for one in found if one[0].metric_name != COARSE or any(often[pair] > 1 for pair in _settings(one))]
    return {one.cell: _same_history(alike) for alike in sure for one in alike}


def _settings(alike: Sequence[CellResult]) -> Iterator[frozenset[Cell]]:
    """Yield the two settings of each two trainings that share a history."""
    for one, other in combinations(alike, 2):
        if _training(one) != _training(other):
            yield frozenset(replace(record.cell, seed=0) for record in (one, other))


def _same_history(alike: Sequence[CellResult]) -> str:
    names = sorted(one.cell.name for one in alike)
    return f"{' and '.join(names)} have the same history: they are one training"


def _training(record: CellResult) -> Hashable:
    """Return what two cells share that may train alike: the seed, residuals of one size by plan, and what is sent.

    Compressors that send all elements may be so exact that they train alike; lossless packing changes nothing.
    """
    cell = record.cell
    some = COMPRESSORS[cell.compressor].selects and cell.density < 1
    sent = (cell.compressor.partition("+")[0], cell.density) if some else None
    residuals = planned_residuals(cell) if cell.scheme in SIZED else None
    return cell.seed, residuals or cell.scheme, sent


def _tells(record: CellResult) -> bool:
    different = len({value for _, value in record.metric_history})
    return different >= (EXACT if record.metric_name == "perplexity" else EVALUATIONS)
