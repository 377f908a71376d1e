"""Every claim of claims.yaml: true records reproduce it, contrary ones refute it, no records leave it not run."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims.claim import SCOPES, STATUSES, Claim, LedgerRow, Scope
from benchmarks.analysis.claims.claims_command import ledger
from benchmarks.analysis.claims.kinds import ITSELF, KINDS, load_claims
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from tests.claim_records import distances, listed, make, role_cells, run_of, wasted

BOOK = load_claims()
SCOPED = [(claim, scope) for claim in BOOK.claims for scope in (claim.paper, claim.small) if scope and scope.roles]
BY_ARITHMETIC = {name for name in listed() if name in {claim.id for claim, _ in SCOPED}}
"""What the library's own bytes refute at full size: the claims by arithmetic beside them show why."""
CONFIGS = Path(__file__).parents[3] / "benchmarks/config"


def row_of(claim: Claim, results: list[CellResult]) -> LedgerRow:
    return ledger(run_of(results), book=replace(BOOK, claims=(claim,)))[0]


def true_records(scope: Scope) -> list[CellResult]:
    return [make(cell) for cell in dict.fromkeys(cell for role in scope.roles for cell in role_cells(scope, role))]


def wasteful(cell: Cell) -> CellResult:
    """Residuals three times as large as they can be."""
    return make(cell, **wasted(cell, 3))


def apart(cell: Cell) -> CellResult:
    far = {"wasserstein": 0.3, "jensen_shannon": 0.4}
    return make(cell, observations={"distributions": distances(far, far)})


CONTRARY: dict[str, Callable[[Cell], CellResult]] = {
    "share": wasteful,
    "saving": wasteful,
    "maximum": wasteful,
    "not_worse": lambda cell: make(cell, worse=20),
    "better": lambda cell: make(cell, worse=20),
    "identical": lambda cell: make(cell, worse=0.3 * (cell.seed == 1)),
    "throughput": lambda cell: make(cell, slower=2),
    "duration": lambda cell: make(cell, slower=2),
    "overlap": apart,
}


def test_every_kind_can_be_refuted() -> None:
    by_cells = {name for name, kind in KINDS.items() if kind.of == "cells"}
    assert CONTRARY.keys() == by_cells == {claim.kind for claim in BOOK.claims if claim.paper.roles}
    assert {claim.kind for claim in BOOK.claims} == KINDS.keys()


@pytest.mark.parametrize(("claim", "scope"), SCOPED, ids=[f"{c.id}-{s is c.paper}" for c, s in SCOPED])
def test_true_records_reproduce_a_claim_and_contrary_ones_refute_it(claim: Claim, scope: Scope) -> None:
    where = "paper" if scope is claim.paper else "small models"
    found = row_of(claim, true_records(scope))
    expected = "not reproduced" if claim.id in BY_ARITHMETIC and where == "paper" else "reproduced"
    assert (found.status, found.scope) == (expected, where), found.reason
    assert found.value is not None and found.cells and found.seeds and found.hardware and found.tolerance
    assert (found.published is not None) >= ("value" in claim.published)
    assert where == "paper" or "not tested" in found.reason
    tested = set(role_cells(scope, "tested"))
    results = [CONTRARY[claim.kind](one.cell) if one.cell in tested else one for one in true_records(scope)]
    found = row_of(claim, results)
    assert (found.status, found.scope) == ("not reproduced", where), found.reason


def test_without_records_a_claim_is_not_run_and_says_what_runs_it() -> None:
    for claim in BOOK.claims:
        assert (KINDS[claim.kind].of == "numbers") == (claim.paper.command == ITSELF)
        if KINDS[claim.kind].of != "numbers":
            found = row_of(claim, [])
            assert (found.status, found.scope, found.value, found.cells) == ("not run", "none", None, ())
            assert found.command == (claim.small or claim.paper).command


def cells_of(command: str) -> list[Cell]:
    """What a command of claims.yaml runs."""
    words = shlex.split(command)
    assert words[:2] == ["make", "run"], command
    given = dict(word.split("=") for word in words[2:])
    assert given.keys() <= {"RUN", "PART"}
    config = read_config(CONFIGS / f"{given.get('RUN', 'smoke')}.yaml", given.get("PART"))
    return expand({key: value for key, value in config.items() if key != "run"})


@pytest.mark.parametrize("command", sorted({scope.command for _, scope in SCOPED}))
def test_a_command_runs_the_cells_of_its_claims(command: str) -> None:
    """Also enough of them: where every cell ends as it should, each claim of the command is reproduced."""
    mine = [(claim, scope) for claim, scope in SCOPED if scope.command == command]
    cells = [cell for cell in cells_of(command) if cell.model in {m for _, s in mine for m in s.models}]
    results = [make(cell) for cell in cells]
    found = {one.id: one for one in ledger(run_of(results))}
    for claim, scope in mine:
        at_full_size = scope is claim.paper
        known = BY_ARITHMETIC if at_full_size else set[str]()
        # One run of each on one machine, or one seed: the smoke run shows no more.
        expected = "not reproduced" if claim.id in known else "reproduced"
        one = found[claim.id]
        assert (one.status, one.scope) == (expected, "paper" if at_full_size else "small models"), one


def test_the_command_line_prints_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in found] == [claim.id for claim in BOOK.claims]
    assert {"id", "statement", "status", "value", "interval", "published", "command"} <= found[0].keys()
    assert {one["status"] for one in found} <= set(STATUSES) and {one["scope"] for one in found} <= set(SCOPES)
    assert main(["claims"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{len(BOOK.claims)} claims: ") and max(map(len, lines)) <= 120
    assert f"x {'exp1-local-max-stated':<36} 14.80 % by arithmetic, stated 13.30 %" in lines
    path = str(tmp_path / "none")
    for option, said in (("--run", f"error: run: {path!r} is not a "), ("--gpus", f"error: gpus: {path!r} is not a ")):
        assert main(["claims", option, path]) == 2
        assert capsys.readouterr().err.startswith(said)
