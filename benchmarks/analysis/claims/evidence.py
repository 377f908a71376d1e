"""The records that claims are judged by, from one run or several, and what is odd about them."""

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import combinations
from typing import Any

from benchmarks.analysis.claims.sound import date_of, planned_residuals, unsound
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import printable
from benchmarks.analysis.load_run import OUTCOMES, Hole, Run, load_failed, strays
from benchmarks.core.cell import Cell
from benchmarks.core.provenance import git
from benchmarks.core.record import BYTE_FIELDS, CellResult, RecordError, try_load
from resireduce.scheme import COMPRESSORS

MOST = 5
"""Most records that the notes of a run name."""


@dataclass(frozen=True)
class Evidence:
    """What was measured, what is missing, and which records contradict each other."""

    results: dict[Cell, CellResult]
    holes: dict[Cell, Hole]
    twice: dict[Cell, str]
    """Cells for which another record has other values, so that the right one is not known."""

    @cached_property
    def by_model(self) -> dict[str, list[Cell]]:
        """All cells by model, in the order of their names, independent of the order of runs and matrices."""
        cells = sorted((*self.results, *self.holes), key=lambda one: one.name)
        return grouped((cell.model, cell) for cell in cells)


def gather(runs: Sequence[Run]) -> Evidence:
    """Merge runs, independent of their order; a cell that was not run counts as missing only if no run filled it.

    An outcome (`benchmarks.analysis.load_run.OUTCOMES`) is not covered by a record: its cell's claims stay open.
    If several runs have a record of a cell, the one measured first counts; if values differ, its claims stay open.
    A record that cannot be genuine counts as a hole.
    """
    found: dict[Cell, list[tuple[str, CellResult]]] = {}
    holes, twice, ended = dict[Cell, Hole](), dict[Cell, str](), dict[Cell, str]()
    for run in sorted(runs, key=lambda one: (one.name, str(one.folder))):
        twice |= _twice(run)
        if not run.is_whole:
            text = f"config.json of {run.name} cannot be read: what is missing is not known"
            twice |= dict.fromkeys(run.results, text)
        broken = _broken(run)
        holes |= broken
        for cell, result in run.results.items():
            if cell not in broken:
                found.setdefault(cell, []).append((run.name, result))
        for cell, hole in run.holes.items():
            holes[cell] = min(holes.get(cell, hole), hole, key=_rank)
            if hole.status in OUTCOMES:
                ended.setdefault(cell, f"{cell.name} ended as {hole.status} in {run.name}: {hole.why}")
    results = {cell: min(records, key=_when)[1] for cell, records in found.items()}
    for cell, ((name, first), *others) in found.items():
        if other := next((run for run, one in others if _measured(one) != _measured(first)), None):
            twice[cell] = f"{name} and {other} have other values of {cell.name}; give one of them"
    twice |= doubled(results.values()) | {cell: text for cell, text in ended.items() if cell in results}
    return Evidence(results, {cell: hole for cell, hole in holes.items() if cell not in results}, twice)


def _broken(run: Run) -> dict[Cell, Hole]:
    """Return a hole for each record of a run that cannot be genuine."""
    why = {cell: unsound(result) or run.doubts.get(cell) for cell, result in run.results.items()}
    again = "delete its record, and run it again"
    return {cell: Hole(cell.name, "broken", problem, again) for cell, problem in why.items() if problem}


def _rank(hole: Hole) -> tuple[bool, bool]:
    """Return the place of a hole among those of one cell: an outcome says more than a cell that is still to be run."""
    return hole.status not in OUTCOMES, bool(hole.doubt)


def _when(record: tuple[str, CellResult]) -> tuple[datetime, str, str]:
    """Return when a record was measured; one that does not say comes last."""
    name, result = record
    return date_of(result.provenance.get("date")) or datetime.max.replace(tzinfo=UTC), name, repr(result.step_seconds)


def _measured(result: CellResult) -> tuple[object, ...]:
    """Return what two records of one cell must share; times and peaks always differ."""
    history = tuple(tuple(pair) for pair in result.metric_history)
    return result.metric_name, result.metric, history, *(getattr(result, name) for name in BYTE_FIELDS[:5])


def _twice(run: Run) -> dict[Cell, str]:
    """Return cells for which a file under another name holds a different record, or tells of another outcome."""
    found: dict[Cell, str] = {}
    for cell in run.results:
        path = run.folder / "cells" / f"{cell.name}.failed.json"
        with suppress(OSError, RecordError):
            if (other := load_failed(path, cell)).status in OUTCOMES and not other.failure.get("interrupted"):
                found[cell] = f"{path.name} says that {cell.name} ended as {other.status}; delete the wrong one"
    for path, other in strays(run):
        own = run.results.get(other.cell)
        if own and other.status == "ok" and _measured(own) != _measured(other):
            found[other.cell] = f"{path.name} holds another record of {other.cell.name}; delete the wrong one"
    return found


# --- Records of one training under several names: by their seconds, and by the metric of each evaluation ---
#
# Only kept and streamed gradients, and settings that change no sum, may give equal histories: cells of other seeds,
# of residuals of other sizes, or that send other elements, do not, except by chance where a metric is a share of a
# few hundred answers.


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
    """Return which of these records have the seconds or the history of another training, and what is said of them.

    Two settings may agree once by chance in a coarse metric, not twice.
    """
    records, texts, found = list(records), dict[Cell, str](), list[list[CellResult]]()
    for those in grouped((tuple(one.step_seconds), one) for one in records if len(one.step_seconds) > 1).values():
        text = f"{_names(those)} took the same seconds in every step: one training, not {len(those)}"
        texts |= {one.cell: text for one in those if len(those) > 1}
    for those in grouped((one.cell.model, one) for one in records).values():
        found += [alike for alike in same_histories(those) if _tells(alike[0]) and len({*map(_training, alike)}) > 1]
    often = Counter(pair for alike in found for pair in _settings(alike))
    for alike in found:
        if alike[0].metric_name != COARSE or any(often[pair] > 1 for pair in _settings(alike)):
            text = f"{_names(alike)} have the same history: they are one training"
            texts |= {one.cell: text for one in alike}
    return texts


def _names(records: Iterable[CellResult]) -> str:
    return " and ".join(sorted(one.cell.name for one in records))


def _settings(alike: Sequence[CellResult]) -> Iterator[frozenset[Cell]]:
    """Yield the two settings of each two trainings that share a history."""
    for one, other in combinations(alike, 2):
        if _training(one) != _training(other):
            yield frozenset(replace(record.cell, seed=0) for record in (one, other))


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


# --- What is odd about the records of a run, for commands whose figures are of them all ---


SAME_PEAKS = ("none", "topk")
"""Compressors whose messages have the same bytes for all seeds."""
NUMERIC: tuple[str, ...] = ("data_hash", "weights_hash", "cpu", "device", "packages", "cuda", "dirty", "tf32")
NUMERIC += ("deterministic", "cudnn", "content: resireduce", "content: benchmarks", "content: packages")
"""Provenance facts that can change a metric: other data, initial weights, order of sums, or hashes of code and data."""


def print_doubts(run: Run) -> None:
    """Print to stderr which records of a run the ledger does not count, how their origins differ, and what its folder
    has besides."""
    lines = [*doubts(run, "These figures count it"), *mixed(run), *other_peaks(run), *uncommitted(run), *left_out(run)]
    for line in lines:
        print(printable(f"Note: {line}"), file=sys.stderr)


def doubts(run: Run, shown: str = "Tables show it") -> list[str]:
    """Return a line for each record of a run that its ledger does not count; `shown` says, as words, what does."""
    evidence = gather([run])
    broken = [f"{cell.name}: {hole.reason}" for cell, hole in evidence.holes.items() if cell in run.results]
    return _lines([*broken, *evidence.twice.values()], shown)


def ambiguous(run: Run) -> list[str]:
    """Return a line for each record of a run that is sound, but a copy of another."""
    return _lines(gather([run]).twice.values(), "The check counts it")


def _lines(texts: Iterable[str], shown: str) -> list[str]:
    found = list(dict.fromkeys(texts))
    more = [f"{len(found) - MOST} more records like these"] if len(found) > MOST else []
    return [f"{text}. {shown}, the ledger does not count it." for text in (*found[:MOST], *more)]


def mixed(run: Run) -> Iterator[str]:
    """Yield a line if records of one model and the same data differ in what can change their metrics."""
    for records in _of_one_start(run):
        if facts := _differing(records):
            what = f"records of {records[0].cell.model} differ in {', '.join(facts)}"
            yield f"{what}: so may their figures, whatever their settings are"


def other_peaks(run: Run) -> Iterator[str]:
    """Yield a line if records of one setting and the same code, of other seeds, were fullest at other bytes.

    Where lengths of messages are decided by values, that is as it should be.
    """
    for records in _of_one_start(run):
        same = [one for one in records if one.cell.compressor in SAME_PEAKS and not _counts_what_goes(one.cell)]
        alike = grouped((replace(one.cell, seed=0), one) for one in same).values()
        others = [those for those in alike if len({one.peak_states_bytes for one in those}) > 1]
        if others and not _differing(records):
            names = " and ".join(one.cell.name for one in others[0][:MOST])
            yield f"records of one setting and code differ in peak_states_bytes, which are arithmetic: {names}"


def _counts_what_goes(cell: Cell) -> bool:
    """Return whether older records of a cell count, at the fullest moment, what threads of Gloo were letting go of."""
    return cell.update == "in_backward" and cell.world_size > 1


def _of_one_start(run: Run) -> Iterable[list[CellResult]]:
    """Return the records by what the hash of their data depends on: the model, and what it is trained on."""
    cells = ((one.cell, one) for one in run.results.values())
    return grouped(((cell.model, cell.data, str(cell.length), *cell.released), one) for cell, one in cells).values()


def _differing(records: Sequence[CellResult]) -> list[str]:
    """Return which of NUMERIC these records have several values of; one that does not say differs from none."""
    told = {fact: {str(value) for one in records if (value := fact_of(one.provenance, fact))} for fact in NUMERIC}
    return [fact for fact, values in told.items() if len(values) > 1]


def uncommitted(run: Run) -> Iterator[str]:
    """Yield a line if code that no commit has made records of a run."""
    if count := sum(one.provenance.get("dirty") is True for one in run.results.values()):
        yield f"{count} of {len(run.results)} records are of code with changes that are not committed"


def changed_claims() -> Iterator[str]:
    """Yield a line if claims, published numbers or planned states are not those that were committed."""
    if changed := git("status", "--porcelain", "--", "results/paper"):
        names = ", ".join(line[3:] for line in changed.splitlines())
        yield f"claims are judged by files that differ from the commit's: {names}"


def fact_of(source: Mapping[str, Any], key: str) -> Any:
    """Return a fact of a record's provenance; None if it does not say."""
    where, _, name = key.rpartition(": ")
    found = source.get(where) if where else source
    value = found.get(name) if isinstance(found, Mapping) else None
    # Which hosts they are is another matter (`benchmarks.analysis.claims.kinds`).
    return sorted(map(str, value.values())) if key == "ranks_per_host" and isinstance(value, Mapping) else value


def left_out(run: Run) -> list[str]:
    """Return lines if the folder of a run has records, or failures, that its config does not name: of further seeds of
    its settings, and of others."""
    names, settings = {cell.name for cell in run.cells}, run.seeds()
    known = {f"{name}{end}" for name in names for end in (".json", ".failed.json")}
    paths = [path for path in sorted(run.folder.glob("cells/*.json")) if path.name not in known]
    cells = [one.cell for one in map(try_load, paths) if one and one.cell.name not in names]
    found = grouped((setting, cell.seed) for cell in cells if (setting := replace(cell, seed=0)) in settings)
    others = [cell.name for cell in cells if replace(cell, seed=0) not in settings]
    lines = []
    if found:
        seeds = ", ".join(map(str, sorted({seed for those in found.values() for seed in those})))
        words = f"{len(found)} setting{'s' if len(found) > 1 else ''}, e.g. {next(iter(found)).name}"
        lines = [f"seeds left out: {seeds} of {words}: cells has records of them, config.json does not name them."]
    if others:
        lines.append(f"left out: {len(others)} more in cells, e.g. {others[0]}: config.json does not name it.")
    return lines
