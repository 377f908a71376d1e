"""Wrong records planted in a run: each changes the ledger exactly as it should, and none crashes it."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims import evidence
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.claims_command import ledger
from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.report_command import screen_text, write_claims
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from benchmarks.core.sample_counts import steps_per_second
from tests.claim_records import diverged, make, ranks, run_of, states, times
from tests.records import path_of

BOOK = load_claims()
CONFIG = {
    "run": "x",
    "defaults": {"seed": [0, 1, 2]},
    "matrix": [
        {"model": "vgg-digits", "scheme": ["baseline", "none", "w+2d"]},
        {"model": "vgg-digits", "scheme": "w+2d", "gradients": "streamed"},
    ],
}
ACCURACY, SAVING, SAME, TIME = "exp2-accuracy-vgg19", "exp1-local-vgg19", "ours-identical-w2d-vgg19", "exp2-time-vgg19"
SPEED, PERPLEXITY = "exp3-throughput-64-vgg19", "exp2-accuracy-gpt2-medium"
SCHEMES = ("baseline", "w+2d", "none")
SEEDS = range(5)
Change = Callable[[CellResult], dict[str, Any]]


def cell_of(scheme: str = "w+2d", seed: int = 1, **fields: Any) -> Cell:
    return Cell(model="vgg-digits", scheme=scheme, seed=seed, **fields)


def judged(name: str, records: list[CellResult], holes: list[tuple[Cell, str, str]] | None = None) -> LedgerRow:
    """What records on no disk show of one claim."""
    claim = next(claim for claim in BOOK.claims if claim.id == name)
    return ledger(run_of(records, holes or []), book=replace(BOOK, claims=(claim,)))[0]


def sides(model: str = "vgg-digits", **fields: Any) -> dict[str, list[CellResult]]:
    """True records of the two sides of a claim of accuracy, and of its control."""
    return {s: [make(Cell(model=model, scheme=s, seed=seed, **fields)) for seed in SEEDS] for s in SCHEMES}


def flat(those: dict[str, list[CellResult]]) -> list[CellResult]:
    return [one for records in those.values() for one in records]


def source(**facts: Any) -> Change:
    return lambda one: {"provenance": {**one.provenance, **facts}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path / "x")


def filled(folder: Path, control: float = 0.0) -> Path:
    """A run in which all is kept; the control is better than it is by so many per cent."""
    (folder / "cells").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "run": folder.name}))
    for cell in expand({key: CONFIG[key] for key in ("defaults", "matrix")}):
        make(cell, worse=-control * (cell.scheme == "none")).save(path_of(folder, cell))
    return folder


def found(*folders: Path) -> dict[str, LedgerRow]:
    return {one.id: one for one in ledger(*map(load_run, folders))}


def said(*command: str, capsys: pytest.CaptureFixture[str]) -> str:
    main([*command])
    return "".join(capsys.readouterr())


# --- Cells that are missing, failed or diverged, and files that are odd ---


def test_true_records(folder: Path) -> None:
    before = {
        name: (one.status, one.reason.partition(". On vgg-digits; the ")[0]) for name, one in found(folder).items()
    }
    assert before[SAVING] == ("reproduced", "vgg-digits 16.40 %, at least 10 % and at most 18 %")
    status, reason = before[ACCURACY]
    assert status == "reproduced" and reason.startswith(f"loss 0.30 [{MINUS}0.02, 0.62] points, margin 1.27")
    assert "; control: without residuals the loss is" in reason
    assert before[SAME] == ("reproduced", "equal in every digit at 4 evaluations, 3 seeds")
    assert before[TIME] == ("reproduced", f"longer by 0.00 [{MINUS}0.01, 0.01] %, margin 10.00; over 3 seeds")
    assert found(folder)[ACCURACY].hardware == "Example CPU, 2 ranks"


def test_a_missing_seed(folder: Path) -> None:
    """What is missing counts as failed: it may have been left out because it did."""
    path_of(folder, cell_of()).unlink()
    now = found(folder)
    assert (now[ACCURACY].status, now[ACCURACY].seeds) == ("inconclusive", 2)
    assert "; seed 1 of topk/w+2d/kept is missing (not run: not run yet)" in now[ACCURACY].reason
    assert now[SAME].status == now[SAVING].status == now[TIME].status == "inconclusive"
    path_of(folder, cell_of(seed=2)).unlink()
    one = found(folder)[ACCURACY]
    assert (one.status, one.seeds) == ("inconclusive", 1)
    assert one.reason.startswith("n = 1: seed 0 alone has no interval; worse by 0.45 points; seed 1, 2 of topk/w+2d/")
    path_of(folder, cell_of(seed=0)).unlink()
    one = found(folder)[ACCURACY]
    assert (one.status, one.scope, one.command) == ("not run", "none", "make run RUN=mini PART=table")


def test_seeds_that_the_config_no_longer_names_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that failed, and records of other settings."""
    run = ("--run", str(folder))
    assert "left out" not in said("claims", *run, capsys=capsys)
    other = Cell(model="gpt2-bytes", seed=7)
    make(other).save(path_of(folder, other))
    diverged(cell_of(seed=8)).save(folder / "cells" / f"{cell_of(seed=8).name}.failed.json")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "defaults": {"seed": [0, 1]}}))
    told = f"left out: 6 files in cells, e.g. {other.name}.json: config.json does not name their cells"
    for command in ("claims", *run), ("report", *run, "--show"):
        assert told in said(*command, capsys=capsys)


def test_a_failed_group_leaves_it_open_and_one_that_shows_the_contrary_refutes_it() -> None:
    def pair(worse: float = 0.0, **fields: Any) -> list[CellResult]:
        cells = [(seed, how) for seed in SEEDS for how in ("kept", "streamed")]
        named = [cell_of("baseline", seed, gradients=how, **fields) for seed, how in cells]
        return [make(cell, worse=worse * (cell.gradients == "streamed")) for cell in named]

    claim, plain, other = "ours-identical-vgg19", pair(), pair(backend="horovod")
    assert judged(claim, [*plain, *other]).status == "reproduced"
    for records in [*plain, *pair(10, backend="horovod")], [*pair(10), *other]:
        assert judged(claim, records).status == "not reproduced"
    for status in ("error", "not run"):
        one = judged(claim, plain, [(one.cell, status, "as planted") for one in other])
        assert one.status == "inconclusive" and "with world_size 2, backend horovod: " in one.reason


def test_a_failed_cell_is_not_replaced_by_a_streamed_one() -> None:
    """Streamed cells stand in for kept ones in claims of bytes where none was to be run."""
    records = [make(cell_of("w+2d", seed, gradients="streamed")) for seed in SEEDS]
    records += [make(cell_of("baseline", seed)) for seed in SEEDS]
    assert judged(SAVING, records).status == "reproduced"
    one = judged(SAVING, records, [(cell_of("w+2d", seed), "broken", "as planted") for seed in SEEDS])
    assert (one.status, one.reason) == ("inconclusive", "vgg-digits.topk.w+2d.kept.d0.01.s0: broken, as planted")


def test_a_few_steps_on_synthetic_inputs_are_no_training() -> None:
    fields: dict[str, Any] = {"model": "vgg19", "scheme": "baseline", "steps": 20, "data": "synthetic"}
    short = [make(Cell(gradients=gradients, **fields)) for gradients in ("kept", "streamed")]
    assert judged("ours-identical-vgg19", short).status == "not run"


def test_a_cpu_does_not_test_what_is_said_of_64_gpus() -> None:
    records = [make(Cell(model="bert-large", world_size=64, scheme=scheme)) for scheme in ("w+2d", "baseline")]
    assert judged("exp1-cloud-bert-large", records).status == "reproduced"
    one = judged("exp1-cloud-bert-large", [replace(one, **source(device="cpu")(one)) for one in records])
    assert one.status == "inconclusive" and one.reason.endswith("measured on a CPU, the claim is of GPUs")


def test_a_file_that_cannot_be_read_is_a_hole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign version, a record of another cell, and one that is nested too deeply, in one line everywhere."""
    path = path_of(folder, cell_of())
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | {"schema_version": 99}))
    now = found(folder)
    for name in (ACCURACY, SAVING):
        assert now[name].status == "inconclusive" and "broken: schema_version: 99 cannot be read" in now[name].reason
    make(cell_of(seed=2)).save(path)
    assert "broken: the record is of another cell" in found(folder)[ACCURACY].reason
    accepted = ("--reference", str(folder / "r.json"), "--accept", "x")
    for damaged in (path, folder / "config.json"):
        path.write_text(text)
        damaged.write_text(damaged.read_text().replace("{", f'{{"deep": {"[" * 900}{"]" * 900}, ', 1))
        for command in (
            ["claims", "--json"],
            ["report", "--show"],
            ["check", *accepted],
        ):
            told = said(command[0], "--run", str(folder), *command[1:], capsys=capsys)
            assert "it is nested too deeply" in told, command
    one = found(folder)[ACCURACY]
    assert (
        one.status == "inconclusive" and "config.json of x cannot be read: what is missing is not known" in one.reason
    )


def test_what_a_record_says_does_not_steer_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "\x1b[2J\x1b[31mall reproduced\u202e"
    for seed in range(3):
        CellResult(cell=cell_of(seed=seed), status="oom", reason=reason).save(path_of(folder, cell_of(seed=seed)))
    for command in ["claims"], ["report", "--show"]:
        told = said(command[0], "--run", str(folder), *command[1:], capsys=capsys)
        assert "\\x1b[2J" in told and all(one.isprintable() or one == "\n" for one in told), command


UNPROVEN: list[tuple[Callable[[Cell], str], str]] = [
    (lambda cell: '{"status": "diverged", "reason": "loss is nan"}', "cannot be read: schema_version: None"),
    (lambda cell: text_of(make(cell)), "status: 'ok' is not allowed here; allowed: oom, timeout"),
    (lambda cell: text_of(diverged(cell_of("w+2d", 9))), "it is of another cell, vgg-digits.topk.w+2d.kept.d0.01.s9"),
    (lambda cell: text_of(diverged(cell), provenance={}), "its content, with the cell it was run for, is missing"),
    (
        lambda cell: text_of(diverged(cell), provenance={"content": {"cell": {"model": "vgg-digits"}}}),
        "provenance: it was measured for vgg-digits.topk",
    ),
    (lambda cell: text_of(diverged(cell), per_rank=[]), "per_rank: needs 2 ranks, and one of them diverged"),
    (lambda cell: text_of(diverged(cell), failure={"step": 7}), "failure: step: 7 is not the one after the 60 steps"),
    (lambda cell: text_of(diverged(cell), steps=600, failure={"step": 600}), "steps: 600, its cell and recipe have"),
]


def text_of(record: CellResult, **change: Any) -> str:
    return json.dumps(record.to_dict() | change)


def replaced(folder: Path, cell: Cell, text: str, failed: bool = True) -> None:
    path_of(folder, cell).unlink()
    path_of(folder, cell).with_suffix(".failed.json" if failed else ".json").write_text(text)


@pytest.mark.parametrize(("text", "reason"), UNPROVEN, ids=[reason for _, reason in UNPROVEN])
def test_a_divergence_without_a_training_decides_nothing(
    tmp_path: Path, text: Callable[[Cell], str], reason: str
) -> None:
    """Neither that the scheme lost its metric, nor that the control did."""
    tested, control = filled(tmp_path / "x"), filled(tmp_path / "y", control=6)
    for seed in range(3):
        replaced(tested, cell_of("w+2d", seed), text(cell_of("w+2d", seed)))
        replaced(control, cell_of("none", seed), text(cell_of("none", seed)))
    one = found(tested)[ACCURACY]
    assert one.status == "inconclusive" and reason in one.reason
    assert found(control)[ACCURACY].status == "inconclusive"


@pytest.mark.parametrize("failed", [True, False])
def test_a_training_that_diverged_decides(tmp_path: Path, failed: bool) -> None:
    folder, control = filled(tmp_path / "x"), filled(tmp_path / "y", control=6)
    replaced(folder, cell_of("w+2d"), text_of(diverged(cell_of("w+2d"))), failed)
    one = found(folder)[ACCURACY]
    assert one.status == "not reproduced" and "seed 1 of vgg-digits.topk.w+2d.kept.d0.01.s1 diverged (" in one.reason
    replaced(folder, cell_of("baseline"), text_of(diverged(cell_of("baseline"))), failed)
    one = found(folder)[ACCURACY]
    assert (one.status, one.seeds) == ("inconclusive", 2), "nor did the other side finish"
    for seed in range(3):
        replaced(control, cell_of("none", seed), text_of(diverged(cell_of("none", seed))), failed)
    one = found(control)[ACCURACY]
    assert one.status == "reproduced" and "seed 0, 1, 2 of it diverged, where full residuals finished" in one.reason


@pytest.mark.parametrize(("status", "is_covered"), [("diverged", False), ("oom", False), ("node-fail", True)])
def test_a_mishap_is_covered_by_another_run_and_an_outcome_is_not(
    tmp_path: Path, status: str, is_covered: bool
) -> None:
    first, second = filled(tmp_path / "a"), filled(tmp_path / "b")
    replaced(first, cell_of(), text_of(diverged(cell_of()), status=status), failed=False)
    assert found(first)[ACCURACY].status != "reproduced"
    for runs in ((first, second), (second, first)):
        one = found(*runs)[ACCURACY]
        assert one.status == ("reproduced" if is_covered else "inconclusive")
        assert is_covered or f"{cell_of().name} ended as {status} in a: the loss was nan" in one.reason


def test_runs_that_are_put_together(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "y"
    (other / "cells").mkdir(parents=True)
    (other / "config.json").write_text(json.dumps({**CONFIG, "run": "y"}))
    path_of(folder, cell_of()).rename(path_of(other, cell_of()))
    assert found(folder, other)[ACCURACY].seeds == 3 and "missing" not in found(folder, other)[ACCURACY].reason
    make(cell_of(seed=2), worse=9).save(path_of(other, cell_of(seed=2)))
    for runs in ((folder, other), (other, folder)):
        one = found(*runs)[ACCURACY]
        assert one.status == "inconclusive", "whatever their order"
        assert f"y and another run have other values of {cell_of(seed=2).name}; give one of them" in one.reason


# --- Records of other origin, copies of others, and figures that no training leaves ---


EVERY, DIGITS, TIMES = (ACCURACY, SAME, TIME), (ACCURACY, SAME), (TIME,)
FACTS: list[tuple[str, Any, tuple[str, ...]]] = [
    *(("commit", "c2", TIMES), ("cpu", "Other CPU", EVERY), ("packages", {"torch": "2.12"}, EVERY)),
    *(("data_hash", "d2", EVERY), ("weights_hash", "w2", EVERY), ("dirty", True, EVERY), ("tf32", True, EVERY)),
    *(("deterministic", "no", EVERY), ("process_group", "nccl", EVERY), ("cudnn", 91002, EVERY)),
    *((f"content: {name}", "other", EVERY) for name in ("resireduce", "benchmarks", "packages")),
    *(("environment", {"MALLOC_MMAP_THRESHOLD_": "1"}, TIMES), ("link_rates", {"a": "100Mbit"}, TIMES)),
    ("ranks_per_host", {"a": 1, "b": 1}, TIMES),
]
"""Each fact of one side that differs, and the claims that it leaves open; bytes depend on none."""


@pytest.mark.parametrize(("fact", "value", "left_open"), FACTS, ids=[fact for fact, *_ in FACTS])
def test_other_inputs_code_or_machine_of_one_side_leave_open_what_they_can_change(
    fact: str, value: Any, left_open: tuple[str, ...]
) -> None:
    plain = [make(cell) for cell in expand({key: CONFIG[key] for key in ("defaults", "matrix")})]
    part, _, name = fact.rpartition(": ")
    own = source(**({part: {**plain[0].provenance["content"], name: value}} if part else {fact: value}))

    def planted(**change: Any) -> dict[str, LedgerRow]:
        made = make(cell_of(), **change)
        content = {"content": {**own(made)["provenance"]["content"], "cell": cell_of().to_dict()}}
        changed = replace(made, provenance=own(made)["provenance"] | content)
        rows = ledger(run_of([changed if one.cell == cell_of() else one for one in plain]))
        return {one.id: one for one in rows}

    now = planted()
    for claim in (*EVERY, SAVING):
        assert now[claim].status == ("inconclusive" if claim in left_open else "reproduced"), now[claim].reason
        is_named = f"; the cells compared differ in {fact}" in now[claim].reason
        assert is_named or claim not in left_open
    if left_open == EVERY:
        assert planted(worse=0.3)[SAME].status == "inconclusive", "digits that differ refute nothing then"


def test_more_steps_on_one_side_are_named() -> None:
    """A recipe on texts says only how many samples there are at least, so that the steps of an epoch may differ."""
    claim, those = "exp2-accuracy-bert-base", sides("bert-base", world_size=8)
    assert judged(claim, flat(those)).status == "reproduced"
    for place, one in enumerate(those["w+2d"]):
        steps = one.steps + one.steps // 2
        past = [[step * steps / one.steps, value] for step, value in one.metric_history]
        those["w+2d"][place] = replace(one, metric_history=past, **times(one.cell, steps, 1.0))
    one = judged(claim, flat(those))
    assert one.status == "inconclusive" and "the cells compared differ in steps" in one.reason


def history_of(record: CellResult, other: CellResult) -> CellResult:
    """The record with the history of another one."""
    metrics = {str(record.metric_name): other.metric}
    return replace(record, metric_history=other.metric_history, metric=other.metric, metrics=metrics)


def times_of(record: CellResult, other: CellResult) -> CellResult:
    """The record with the times of another one."""
    names = ("step_seconds", "phase_seconds", "steps_per_second", "per_rank")
    return replace(record, **{name: getattr(other, name) for name in names})


@pytest.mark.parametrize(("change", "reason"), [(history_of, "have the same history"), (times_of, "took the same ")])
def test_seeds_that_are_copies_of_one_are_one_training(change: Any, reason: str) -> None:
    those = sides("gpt2-bytes")
    assert judged(PERPLEXITY, flat(those)).status == "reproduced"
    one = judged(PERPLEXITY, [change(one, records[0]) for records in those.values() for one in records])
    assert one.status == "inconclusive" and reason in one.reason


@pytest.mark.parametrize(("seeds", "status"), [(1, "reproduced"), (2, "inconclusive")])
def test_shares_of_few_answers_agree_by_chance_in_one_seed_and_not_in_two(seeds: int, status: str) -> None:
    """The other side of those cells is in no claim with them: only the whole run tells."""
    those = sides()
    more = [history_of(make(cell_of("2d", seed)), those["w+2d"][seed]) for seed in range(seeds)]
    assert judged(ACCURACY, [*flat(those), *more]).status == status
    twin = history_of(those["none"][0], those["none"][1])
    assert judged(ACCURACY, [twin, *flat(those)[:-5], *those["none"][1:]]).status == "inconclusive", "nor two seeds"


def test_seeds_without_spread_are_not_certain() -> None:
    """Each is worse by one answer of 449."""
    those = sides()
    for place, other in enumerate(those["baseline"]):
        one, metric = those["w+2d"][place], float(other.metric or 0) - 100 / 449
        past = [*one.metric_history[:-1], [one.steps, metric]]
        those["w+2d"][place] = replace(one, metric=metric, metrics={"accuracy": metric}, metric_history=past)
    one = judged(ACCURACY, flat(those))
    assert one.status == "inconclusive" and "5 seeds differ by the same 0.2227" in one.reason


@pytest.mark.parametrize(("loss", "status"), [(0.9, "inconclusive"), (1.5, "reproduced")])
def test_a_control_must_lose_more_than_the_margin(loss: float, status: str) -> None:
    those = sides()
    those["none"] = [make(one.cell, worse=loss * 100 / 95 - 6) for one in those["none"]]
    one = judged(ACCURACY, flat(those))
    assert one.status == status and ("these records cannot tell" in one.reason) == (status == "inconclusive")


def test_a_metric_in_other_units_is_not_taken_for_one_that_is_kept() -> None:
    those = sides("gpt2-bytes")
    for place, one in enumerate(those["w+2d"]):
        plain = make(one.cell, worse=6.0)
        metric, past = log(plain.metric or 1), [[step, log(value or 1)] for step, value in plain.metric_history]
        those["w+2d"][place] = replace(one, metric=metric, metrics={"perplexity": metric}, metric_history=past)
    one = judged(PERPLEXITY, flat(those))
    assert one.status == "inconclusive" and "are both metrics in the same units, on the same data?" in one.reason


GIB = 2**30
BYTES: list[tuple[str, Change]] = [
    ("w+2d", lambda one: parts(one, parameters=1, gradients=0, residuals=0, optimizer_states=0)),
    ("w+2d", lambda one: parts(one, parameters=(one.parameters_bytes or 0) // 3)),
    ("w+2d", lambda one: parts(one, gradients=0)),
    ("w+2d", lambda one: parts(one, optimizer_states=0)),
    ("w+2d", lambda one: parts(one, residuals=0)),
    ("baseline", lambda one: parts(one, residuals=(one.residuals_bytes or 0) + GIB)),
    ("baseline", lambda one: parts(one, optimizer_states=(one.optimizer_states_bytes or 0) + GIB)),
]


def parts(one: CellResult, **change: int) -> dict[str, Any]:
    """Other bytes of states, in all figures alike."""
    held = {name: getattr(one, name) for name in states(one.cell)} | {f"{n}_bytes": v for n, v in change.items()}
    total = sum(held[f"{name}_bytes"] for name in ("parameters", "gradients", "residuals", "optimizer_states"))
    held |= {"total_bytes": total, "peak_states_bytes": total}
    return held | {"per_rank": ranks(one.cell, vars(one) | held)}


@pytest.mark.parametrize(("side", "change"), BYTES, ids=range(len(BYTES)))
def test_a_saving_comes_from_residuals_alone(side: str, change: Change) -> None:
    records = [make(Cell(model="bert-large", world_size=64, scheme=scheme)) for scheme in ("w+2d", "baseline")]
    one = judged("exp1-cloud-bert-large", [replace(r, **change(r)) if r.cell.scheme == side else r for r in records])
    assert one.status == "inconclusive" and ", by plan " in one.reason


def test_a_saving_is_not_the_published_one_since_more_is_held_than_planned() -> None:
    """With so many bytes of residuals more that the larger saving of the plan shrinks to the one that is stated."""
    cell, other = (Cell(model="resnet50", world_size=8, scheme=scheme) for scheme in ("w+2d", "baseline"))
    more = round(0.881 * states(other)["total_bytes"]) - states(cell)["total_bytes"]
    planted = make(cell, **parts(make(cell), residuals=states(cell)["residuals_bytes"] + more))
    one = judged("exp1-local-resnet50", [planted, make(other)])
    assert one.status == "inconclusive" and one.reason.startswith("resnet50 11.90 %; published 11.9 %, 0.00 points ")
    assert f"; residuals_bytes of {cell.name} is " in one.reason


def of_a_thousand(cell: Cell, change: Change) -> CellResult:
    """A record as it is written: with the seconds of all its steps."""
    one = make(cell)
    seconds = [one.step_seconds[step % len(one.step_seconds)] for step in range(one.steps)]
    whole = {"step_seconds": seconds, "steps_per_second": steps_per_second(seconds), "phase_seconds": one.phase_seconds}
    whole |= {"wall_seconds": 1.1 * sum(seconds)}
    one = replace(one, **whole, per_rank=ranks(cell, vars(one) | whole))
    return replace(one, **change(one))


LONG: list[tuple[Change, str]] = [
    (lambda one: {}, ""),
    (source(resumed_at_steps=[7]), ".s0.steps1000 was stopped, and went on at step 7: what it took is not that of"),
    (lambda one: {"steps_per_second": 1.4 * float(one.steps_per_second or 0)}, "broken, steps_per_second: "),
    (lambda one: {"step_seconds": one.step_seconds[:400]}, "step_seconds: 400 that took time are needed for 1000"),
]


@pytest.mark.parametrize(("change", "reason"), LONG, ids=[reason for _, reason in LONG])
def test_a_long_training_is_checked_before_it_is_thinned(tmp_path: Path, change: Change, reason: str) -> None:
    cells = [cell_of(scheme, seed, steps=1000) for scheme in ("baseline", "w+2d") for seed in range(3)]
    (tmp_path / "cells").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"run": "x", "matrix": [cell.to_dict() for cell in cells]}))
    for cell in cells:
        of_a_thousand(cell, change if cell.scheme == "w+2d" else lambda one: {}).save(path_of(tmp_path, cell))
    assert len(load_run(tmp_path).results) == 6, "tables show them all"
    one = found(tmp_path)[SPEED]
    assert one.status == ("inconclusive" if reason else "reproduced") and reason in one.reason, one.reason


# --- What commands say of a run ---


def test_a_record_that_the_ledger_does_not_count_is_named_beside_the_tables(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, other = make(cell_of()), cell_of("baseline")
    for content, is_told in (({"cell": cell_of().to_dict()}, False), ({"cell": other.to_dict()}, True)):
        replace(made, provenance={**made.provenance, "content": content}).save(path_of(folder, cell_of()))
        told = f"it was measured for {other.name}, and is called {cell_of().name}. It is shown, but the ledger does not"
        assert (told in said("report", "--run", str(folder), "--show", capsys=capsys)) == is_told


@pytest.mark.parametrize(
    "command", ["summary intervals --run RUN", "check --run RUN --reference RUN/r.json --accept x"]
)
def test_figures_of_mixed_origin_are_told(folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit alone changes none, and a record that does not say differs from none."""
    record, told = make(cell_of()), "records of vgg-digits differ in data_hash, cpu: so may their figures"
    for change in ({"commit": "c2"}, {"cpu": None}, {"cpu": "Other CPU", "data_hash": "d2"}):
        replace(record, provenance={**record.provenance, **change}).save(path_of(folder, cell_of()))
        text = said(*command.replace("RUN", str(folder)).split(), capsys=capsys)
        assert (told in text) == (len(change) == 2) and text.count(" differ in ") == (len(change) == 2)


def test_code_that_no_commit_has_fullest_moments_that_differ_and_other_claims_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where all records are of such code, so that no two of them differ."""
    for path in (folder / "cells").glob("*.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"provenance": {**values["provenance"], "dirty": True}}))
    one = CellResult.load(path_of(folder, cell_of()))
    fuller = {"in_flight_bytes": 8, "peak_states_bytes": int(one.peak_states_bytes or 0) + 8}
    replace(one, per_rank=[{**rank, **fuller} for rank in one.per_rank], **fuller).save(path_of(folder, cell_of()))
    accepted = ("--reference", str(folder / "r.json"), "--accept", "x")
    for command in ["claims"], ["report", "--show"], ["summary", "intervals"], ["check", *accepted]:
        text = said(command[0], "--run", str(folder), *command[1:], capsys=capsys)
        assert "12 of 12 records are of code with changes that are not committed" in text
        assert f"differ in peak_states_bytes: {cell_of(seed=0).name} and " in text
    monkeypatch.setattr(evidence, "git", lambda *arguments: " M results/paper/claims.yaml\n")
    for command in ["claims"], ["report", "--show"]:
        text = said(command[0], "--run", str(folder), *command[1:], capsys=capsys)
        assert "claims are judged by files that differ from the commit's: results/paper/claims.yaml" in text


def test_the_report_writes_and_shows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(folder)
    write_claims(run, ledger(run))
    plain = json.loads((folder / "claims.json").read_text())
    ends = [one.interval and [*one.interval] for one in ledger(run)]
    assert [one["status"] for one in plain] == [one.status for one in ledger(run)]
    assert any(ends) and [one["interval"] for one in plain] == ends
    rows = (folder / "tables/claims.csv").read_text().splitlines()
    table = csv.DictReader(rows)
    assert [[row["interval_low"], row["interval_high"]] for row in table] == [
        [*map(str, one or ("", ""))] for one in ends
    ]
    row = f"| `{ACCURACY}`: vgg-digits keeps its metric with w+2d | reproduced (small models) |"
    assert row in (folder / "tables/claims.md").read_text()
    assert main(["claims", "--run", str(folder)]) == 0
    text = capsys.readouterr().out.strip()
    assert text in screen_text(run)
    assert f"+ {SAVING:<36} vgg-digits 16.40 %, at least 10 % and at most 18 %" in text
