"""Whatever is done to the records of a run, short of forging all of them alike, no claim comes to be reproduced."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.analysis.claims.claims_command import ledger
from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.load_run import Run
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.claim_records import make, run_of

SIDES = [("baseline", "kept"), ("none", "kept"), ("w+2d", "kept"), ("baseline", "streamed"), ("w+2d", "streamed")]
CELLS = [
    Cell(model="vgg-digits", scheme=scheme, gradients=gradients, seed=seed)
    for scheme, gradients in SIDES
    for seed in range(4)
]
CLAIMS = ("exp1-local-vgg19", "exp2-accuracy-vgg19", "exp2-time-vgg19", "exp3-throughput-64-vgg19")
CLAIMS += ("ours-residuals-matter-vgg19", "ours-identical-vgg19", "ours-identical-w2d-vgg19")
CLAIMS += ("ours-streamed-sgd-vgg19", "ours-both-sgd-vgg19", "obs1-share-vgg19")
BOOK = load_claims()
SOME = replace(BOOK, claims=tuple(claim for claim in BOOK.claims if claim.id in CLAIMS))
Holes = list[tuple[Cell, str, str]]
Records = dict[Cell, CellResult]

WORLDS: dict[str, Callable[[Cell], CellResult]] = {
    "all is true": make,
    "the accuracy is lost": lambda cell: make(cell, worse=5.0 * (cell.scheme == "w+2d")),
    "seeds differ much": lambda cell: make(cell, spread=2.0 * (cell.scheme == "w+2d")),
    "no control": lambda cell: make(cell, worse=-6.0 * (cell.scheme == "none")),
    "streamed is other": lambda cell: make(cell, worse=0.3 * (cell.gradients == "streamed")),
    "it is slow": lambda cell: make(cell, slower=2.0 if cell.scheme == "w+2d" or cell.gradients == "streamed" else 1.0),
}


@lru_cache
def world(name: str) -> dict[Cell, CellResult]:
    return {cell: WORLDS[name](cell) for cell in CELLS}


@lru_cache
def verdicts_of(name: str) -> dict[str, str]:
    return verdicts(run_of(world(name).values()))


def verdicts(*runs: Run) -> dict[str, str]:
    return {one.id: one.status for one in ledger(*runs, book=SOME)}


def missing(records: Records, holes: Holes, cell: Cell, random: Random) -> None:
    """A record is gone; its cell is of the matrix."""
    records.pop(cell, None)
    holes.append((cell, random.choice(["not run", "error", "broken", "oom"]), "as planted"))


def shortened(records: Records, holes: Holes, cell: Cell, random: Random) -> None:
    one = records[cell]
    short = random.randrange(0, max(1, one.steps))
    records[cell] = random.choice(
        [
            replace(one, steps=short),
            replace(one, metric_history=one.metric_history[:2]),
            replace(one, metric_history=[]),
            replace(one, step_seconds=one.step_seconds[:short]),
        ]
    )


def copied(records: Records, holes: Holes, cell: Cell, random: Random) -> None:
    """One result under two names: of another seed, or of the other side."""
    records[cell] = renamed(records[random.choice([one for one in records if one != cell])], cell)


def renamed(record: CellResult, cell: Cell) -> CellResult:
    """The record under the name of another cell, wherever it has it."""
    content = {**record.provenance["content"], "cell": cell.to_dict()}
    return replace(record, cell=cell, provenance={**record.provenance, "content": content})


def swapped(records: Records, holes: Holes, cell: Cell, random: Random) -> None:
    """Two sides have each other's names, for all seeds."""
    other = random.choice([(s, g) for s, g in SIDES if (s, g) != (cell.scheme, cell.gradients)])
    for seed in range(4):
        one, two = (
            Cell(model="vgg-digits", scheme=s, gradients=g, seed=seed)
            for s, g in ((cell.scheme, cell.gradients), other)
        )
        if one in records and two in records:
            records[one], records[two] = renamed(records[two], one), renamed(records[one], two)


def contradicted(records: Records, holes: Holes, cell: Cell, random: Random) -> None:
    """Another group shows the contrary, or nothing."""
    worse = random.choice([0.0, 10.0])
    for scheme, gradients in SIDES:
        for seed in range(2):
            new = Cell(model="vgg-digits", scheme=scheme, gradients=gradients, seed=seed, backend="horovod")
            records[new] = make(new, worse=worse * (scheme == "w+2d" or gradients == "streamed"), slower=1 + worse)


def elsewhere(records: Records, holes: Holes, cell: Cell, random: Random) -> None:
    name, value = random.choice([("threads", 8), ("cpu", "Other"), ("data_hash", "x"), ("dirty", True)])
    records[cell] = replace(records[cell], provenance={**records[cell].provenance, name: value})


CORRUPTIONS = [missing, shortened, copied, swapped, contradicted, elsewhere]


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(list(WORLDS)),
    steps=st.lists(st.tuples(st.sampled_from(CORRUPTIONS), st.integers(0, len(CELLS) - 1)), min_size=1, max_size=3),
    random=st.randoms(use_true_random=False),
)
def test_no_corruption_reproduces_a_claim(name: str, steps: list[tuple[Callable, int]], random: Random) -> None:  # type: ignore[type-arg]
    before = verdicts_of(name)
    records, holes = dict(world(name)), Holes()
    for corrupt, number in steps:
        if CELLS[number] in records:
            corrupt(records, holes, CELLS[number], random)
    after = verdicts(run_of(records.values(), holes))
    said = [corrupt.__name__ for corrupt, _ in steps]
    assert not [one for one in after if after[one] == "reproduced" != before[one]], (name, said)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(list(WORLDS)), random=st.randoms(use_true_random=False), split=st.booleans())
def test_no_order_changes_a_verdict(name: str, random: Random, split: bool) -> None:
    records, holes = dict(world(name)), Holes()
    contradicted(records, holes, CELLS[0], random)
    expected = verdicts(run_of(records.values()))
    shuffled = list(records.values())
    random.shuffle(shuffled)
    half = random.randrange(len(shuffled)) if split else 0
    runs = [run_of(shuffled[:half]), run_of(shuffled[half:])]
    random.shuffle(runs)
    assert verdicts(*runs) == expected


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_show_what_they_are_for(name: str) -> None:
    """Else the properties say nothing: each claim is reproduced in one of them, and most are not in another."""
    found = verdicts_of(name)
    assert name != "all is true" or set(found.values()) == {"reproduced"}, found
    assert name == "all is true" or set(found.values()) - {"reproduced"}, found
