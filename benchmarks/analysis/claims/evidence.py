"""The records that claims are judged by, what is odd about them, and which of them a claim compares."""

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

from benchmarks.analysis.claims.claim import NOT_RUN, Book, Claim, Criteria, Scope, Undecided
from benchmarks.analysis.claims.sound import planned_bytes, unsound
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import printable
from benchmarks.analysis.load_run import OUTCOMES, Hole, Run
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.provenance import git
from benchmarks.core.record import BYTE_FIELDS, CellResult
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
    If several runs have a record of a cell, that of the first name counts; if values differ, its claims stay open.
    A record that cannot be genuine counts as a hole.
    """
    results, holes, twice, ended = dict[Cell, CellResult](), dict[Cell, Hole](), dict[Cell, str](), dict[Cell, str]()
    for run in sorted(runs, key=lambda one: (one.name, str(one.folder))):
        if not run.is_whole:
            text = f"config.json of {run.name} cannot be read: what is missing is not known"
            twice |= dict.fromkeys(run.results, text)
        for cell, result in run.results.items():
            if problem := unsound(result) or run.doubts.get(cell):
                holes[cell] = Hole(cell.name, "broken", problem, "delete its record, and run it again")
            elif _measured(result) != _measured(results.setdefault(cell, result)):
                twice[cell] = f"{run.name} and another run have other values of {cell.name}; give one of them"
        for cell, hole in run.holes.items():
            holes[cell] = min(holes.get(cell, hole), hole, key=_rank)
            if hole.status in OUTCOMES:
                ended.setdefault(cell, f"{cell.name} ended as {hole.status} in {run.name}: {hole.why}")
    twice |= doubled(results.values()) | {cell: text for cell, text in ended.items() if cell in results}
    return Evidence(results, {cell: hole for cell, hole in holes.items() if cell not in results}, twice)


def _rank(hole: Hole) -> tuple[bool, bool]:
    """Return the place of a hole among those of one cell: an outcome says more than a cell that is still to be run."""
    return hole.status not in OUTCOMES, bool(hole.doubt)


def _measured(result: CellResult) -> tuple[object, ...]:
    """Return what two records of one cell must share; times and peaks always differ."""
    history = tuple(tuple(pair) for pair in result.metric_history)
    return result.metric_name, result.metric, history, *(getattr(result, name) for name in BYTE_FIELDS[:5])


# --- Records of one training under several names: by their seconds, and by the metric of each evaluation ---
#
# Only kept and streamed gradients, and settings that change no sum, may give equal histories: cells of other seeds,
# of residuals of other sizes, or that send other elements, do not, except by chance where a metric is a share of a
# few hundred answers.


EVALUATIONS = 3
"""Fewest different values of a history that is compared: the first steps of many trainings end with one accuracy. Two
are enough of perplexities, which have so many digits that they do not agree by chance."""
COARSE = "accuracy"
"""The metric that is a share of a few hundred answers, so that one of 10,000 pairs of trainings agrees by chance."""
SIZED = ("baseline", "w", "2d", "w+2d")
"""Schemes whose residuals are the same where they have the same size by plan; those of others differ in values."""


def doubled(records: Iterable[CellResult]) -> dict[Cell, str]:
    """Return which of these records have the seconds or the history of another training, and what is said of them.

    Two settings may agree once by chance in a coarse metric, not twice; two seeds of one count as one training.
    """
    records, texts = list(records), dict[Cell, str]()
    for those in grouped((tuple(one.step_seconds), one) for one in records if len(one.step_seconds) > 1).values():
        text = f"{_names(those)} took the same seconds in every step: one training, not {len(those)}"
        texts |= {one.cell: text for one in those if len(those) > 1}
    histories = grouped((f"{one.cell.model} {[[*pair] for pair in one.metric_history]}", one) for one in records)
    found = [alike for alike in histories.values() if _tells(alike[0]) and len({*map(_training, alike)}) > 1]
    often = Counter(pair for alike in found for pair in _settings(alike))
    for alike in found:
        if alike[0].metric_name != COARSE or any(often[pair] > 1 or len(pair) == 1 for pair in _settings(alike)):
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
    """Return what two cells share that may train alike: the seed, residuals of one size by plan, and what is sent."""
    cell = record.cell
    # Compressors that send all elements may be so exact that they train alike; lossless packing changes nothing.
    some = COMPRESSORS[cell.compressor].selects and cell.density < 1
    sent = (cell.compressor.partition("+")[0], cell.density) if some else None
    residuals = planned_bytes(cell, "residuals_bytes") if cell.scheme in SIZED else None
    return cell.seed, residuals or cell.scheme, sent


def _tells(record: CellResult) -> bool:
    different = len({value for _, value in record.metric_history})
    return different >= EVALUATIONS - (record.metric_name == "perplexity")


# --- What is odd about the records of a run, for commands whose figures are of them all ---

SAME_PEAKS = ("none", "topk")
"""Compressors whose messages have the same bytes for all seeds."""
NUMERIC: tuple[str, ...] = ("data_hash", "weights_hash", "cpu", "device", "packages", "cuda", "dirty", "tf32")
NUMERIC += ("deterministic", "cudnn", "content: resireduce", "content: benchmarks", "content: packages")
"""Provenance facts that can change a metric: other data, initial weights, order of sums, or hashes of code and data."""


def print_doubts(run: Run) -> None:
    """Print to stderr which records of a run the ledger does not count, and what else is odd about it."""
    for line in [*doubts(run), *mixed(run), *odd(run)]:
        print(printable(f"Note: {line}"), file=sys.stderr)


def doubts(run: Run) -> list[str]:
    """Return a line for each record of a run that is shown, and that the ledger does not count."""
    evidence = gather([run])
    broken = [f"{cell.name}: {hole.reason}" for cell, hole in evidence.holes.items() if cell in run.results]
    found = list(dict.fromkeys([*broken, *evidence.twice.values()]))
    more = [f"{len(found) - MOST} more records like these"] if len(found) > MOST else []
    return [f"{text}. It is shown, but the ledger does not count it." for text in (*found[:MOST], *more)]


def mixed(run: Run) -> Iterator[str]:
    """Yield a line if records of one model and the same data differ in what can change their metrics.

    One that does not say a fact differs from none.
    """
    alike = (((one.model, one.data, str(one.length), *one.released), record) for one, record in run.results.items())
    for records in grouped(alike).values():
        told = {fact: {str(value) for one in records if (value := fact_of(one.provenance, fact))} for fact in NUMERIC}
        if facts := [fact for fact, values in told.items() if len(values) > 1]:
            what = f"records of {records[0].cell.model} differ in {', '.join(facts)}"
            yield f"{what}: so may their figures, whatever their settings are"


def odd(run: Run) -> Iterator[str]:
    """Yield a line if code that no commit has made records, if seeds of one setting and code were fullest at other
    bytes, and if the folder has files of cells, such as further seeds, that its config does not name.

    Fullest moments may differ where values decide lengths of messages, and in older records of several ranks that
    update in the backward pass, which count what threads of Gloo were letting go of.
    """
    if count := sum(one.provenance.get("dirty") is True for one in run.results.values()):
        yield f"{count} of {len(run.results)} records are of code with changes that are not committed"
    alike = (
        ((replace(one, seed=0), str([fact_of(record.provenance, fact) for fact in NUMERIC])), record)
        for one, record in run.results.items()
        if one.compressor in SAME_PEAKS and (one.update != "in_backward" or one.world_size == 1)
    )
    for those in grouped(alike).values():
        if len({one.peak_states_bytes for one in those}) > 1:
            yield f"records of one setting and code differ in peak_states_bytes: {_names(those)}"
    known = {f"{cell.name}{end}" for cell in run.cells for end in (".json", ".failed.json")}
    if others := [path.name for path in sorted(run.folder.glob("cells/*.json")) if path.name not in known]:
        yield f"left out: {len(others)} files in cells, e.g. {others[0]}: config.json does not name their cells"


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
    # Which hosts they are does not matter.
    return sorted(map(str, value.values())) if key == "ranks_per_host" and isinstance(value, Mapping) else value


# --- Select cells of a claim's roles that are alike in all else, group by group ---

CONTROL = "control"
MEMORY = "memory"
SHAPE = ("data", "steps", "batch_per_rank", "length")
"""Fields that make a cell less than a whole training of its model if they are not at their default."""
PLACES = ("world_size", "nodes", "backend")
FREE: dict[str, tuple[str, ...]] = {
    MEMORY: (*PLACES, "observe", *SHAPE),
    "metric": PLACES,
    "speed": (*PLACES, *SHAPE),
    "observation": PLACES,
}
"""By measured quantity, the fields that may have any value unless a claim names one; equal within a group."""
TO_COME = ("not run", "unfinished")
"""Statuses of holes that the same command still fills; any other status is an outcome."""


@dataclass(frozen=True)
class Comparison:
    """Cells of one model by role and seed, alike except for their roles."""

    model: str
    results: Mapping[str, Mapping[int, CellResult]]
    holes: Mapping[str, Mapping[int, Hole]]
    group: str = ""
    """The values that are equal within this group and may differ between groups."""

    def seeds(self, *roles: str) -> list[int]:
        """Return the seeds that all these roles finished, in order."""
        return sorted(set.intersection(*(set(self.results.get(role, {})) for role in roles)))

    def records(self, *roles: str) -> tuple[CellResult, ...]:
        """Return the records of the seeds that these roles have in common, role by role."""
        return tuple(self.results[role][seed] for role in roles for seed in self.seeds(*roles))

    def missing(self) -> str:
        """Say which seeds are missing, and why; "" if none is, or only a control that diverged: it shows its point."""
        why = grouped(
            (f"of {'/'.join(hole.name.split('.')[1:4])} is missing ({hole.status}: {hole.why})", seed)
            for role, holes in self.holes.items()
            if role != CONTROL or not all(hole.has_diverged for hole in holes.values())
            for seed, hole in sorted(holes.items())
        )
        return "; ".join(f"seed {', '.join(map(str, seeds))} {text}" for text, seeds in why.items())


def select(
    evidence: Evidence, scope: Scope, model: str, measured: str, *, on_gpus: bool = False
) -> tuple[Comparison, ...]:
    """Return a comparison for each group of cells that agree in the free fields and have all roles that are needed.

    If no group has, the fullest one is returned, and what it lacks gives the verdict. on_gpus: measurements on a CPU
    count as holes.
    """
    free, groups = FREE[measured], dict[tuple[Any, ...], dict[str, list[Cell]]]()
    for role, criteria in scope.roles.items():
        for cell in _matching(evidence, model, criteria, free):
            groups.setdefault(_key(cell, free), {}).setdefault(role, []).append(cell)
    for role, criteria in scope.roles.items() if measured == MEMORY else ():
        # Of bytes, a cell with streamed gradients stands in where none with kept ones was to be run. Kept never stands
        # in for streamed: that a streamed cell holds no gradients is the claim under test.
        for cell in _matching(evidence, model, {**criteria, "gradients": "streamed"}, free):
            cells = groups.setdefault(_key(cell, free), {}).setdefault(role, [])
            if all(one.gradients == "streamed" and one != cell for one in cells):
                cells.append(cell)
    made = []
    for key in sorted(groups, key=str):
        named = ", ".join(f"{name} {value}" for name, value in zip(free, key, strict=True) if value not in (None, ()))
        made.append(_comparison(evidence, Comparison(model, {}, {}, named), groups[key], on_gpus))
    needed = {
        role
        for role, criteria in scope.roles.items()
        if role != CONTROL and not (measured == MEMORY and role == "against" and is_full(criteria))
    }
    whole = [one for one in made if needed <= one.results.keys()]
    none = Comparison(model, {}, {})
    return tuple(whole) or (max(made, key=lambda one: sum(map(bool, one.results.values())), default=none),)


def is_full(criteria: Criteria) -> bool:
    """Return whether a role is the baseline in float32, whose states are those of the plan."""
    return {name: value for name, value in criteria.items() if name != "world_size"} == {"scheme": "baseline"}


def _key(cell: Cell, free: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in free)


def _matching(evidence: Evidence, model: str, criteria: Criteria, free: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells of a role: they match its criteria, and defaults in fields neither named by it nor free."""
    wanted = Cell(model=model, **criteria)
    strict = [name for name in CELL_FIELDS if name in criteria or name not in (*free, "seed")]
    for cell in evidence.by_model.get(model, []):
        if all(getattr(cell, name) == getattr(wanted, name) for name in strict):
            yield cell


def on_cpu(record: CellResult) -> bool:
    """Return whether a record was measured on a CPU, or names no device."""
    return record.provenance.get("device") in (None, "cpu")


def _comparison(evidence: Evidence, empty: Comparison, group: Mapping[str, list[Cell]], on_gpus: bool) -> Comparison:
    results: dict[str, dict[int, CellResult]] = {role: {} for role in group}
    holes: dict[str, dict[int, Hole]] = {role: {} for role in group}
    for role, cell in ((role, cell) for role, cells in group.items() for cell in cells):
        if cell in evidence.holes:
            holes[role][cell.seed] = evidence.holes[cell]
        elif on_gpus and on_cpu(evidence.results[cell]):
            holes[role][cell.seed] = Hole(cell.name, "measured on a CPU", "the claim is of GPUs", "")
        else:
            results[role][cell.seed] = evidence.results[cell]
    return replace(empty, results=results, holes=holes)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One scope of a claim, with the comparisons to judge."""

    book: Book
    claim: Claim
    scope: Scope
    comparisons: tuple[Comparison, ...]

    @property
    def only(self) -> Comparison:
        """The comparison of a claim about one model."""
        return self.comparisons[0]

    def published(self, role: str = "value") -> float | None:
        """Return the value that the paper states for a role; None if there is none, or these are small models."""
        one = self.claim.published.get(role)
        return one.value if one is not None and self.scope is self.claim.paper else None


def check_there(comparison: Comparison, *roles: str) -> None:
    """Raise Undecided, with the reason, unless each of these roles has a finished cell.

    A failed cell has an outcome and leaves the claim inconclusive; a cell not run yet leaves it not run.
    """
    empty = [role for role in roles if not comparison.results.get(role)]
    holes = [hole for role in empty for hole in comparison.holes.get(role, {}).values()]
    for hole in holes:
        if hole.status not in TO_COME:
            raise Undecided(f"{hole.name}: {hole.status}, {hole.why}")
    if empty:
        none = f"no cells of {comparison.model} for it ({empty[0]})"
        raise Undecided(f"{holes[0].name}: {holes[0].status}" if holes else none, NOT_RUN)


def common_seeds(comparison: Comparison, *roles: str) -> list[int]:
    """Return the seeds that all these roles finished, at least one. Raises Undecided, with the reason, if none."""
    check_there(comparison, *roles)
    if seeds := comparison.seeds(*roles):
        return seeds
    raise Undecided(f"no seed in common; {comparison.missing()}".rstrip("; "))
