"""Records that contradict themselves in what they say of their origin, times and metrics, or no longer say it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.sound import METRICS
from benchmarks.analysis.load_run import load_run
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.core.registry import TASKS
from benchmarks.core.sample_counts import steps_per_second
from resireduce.scheme import load
from tests.claim_records import distances, make, ranks, run_of, times

BOOK = load_claims()
ACCURACY, TIME, SPEED = "exp2-accuracy-vgg19", "exp2-time-vgg19", "exp3-throughput-64-vgg19"
SEEDS = range(5)
Change = Callable[[CellResult], Mapping[str, Any]]


def sides(model: str = "vgg-digits", **fields: Any) -> dict[str, list[CellResult]]:
    schemes = ("baseline", "w+2d", "none")
    return {s: [make(Cell(model=model, scheme=s, seed=seed, **fields)) for seed in SEEDS] for s in schemes}


def judged(name: str, found: Mapping[str, list[CellResult]]) -> LedgerRow:
    claim = next(claim for claim in BOOK.claims if claim.id == name)
    return ledger(run_of([one for those in found.values() for one in those]), book=replace(BOOK, claims=(claim,)))[0]


def source(**facts: Any) -> Change:
    return lambda one: {"provenance": {**one.provenance, **facts}}


@pytest.mark.parametrize("name", ["resireduce", "benchmarks", "packages"])
def test_other_code_on_one_side_is_named(name: str) -> None:
    found = sides()
    for place, one in enumerate(found["w+2d"]):
        content = {**one.provenance["content"], name: "other"}
        found["w+2d"][place] = replace(one, provenance={**one.provenance, "content": content})
    for claim in (ACCURACY, TIME, SPEED):
        one = judged(claim, found)
        assert one.status == "inconclusive" and f"the cells compared differ in content: {name}" in one.reason


def test_more_steps_on_one_side_are_named() -> None:
    """A recipe on texts says only how many samples there are at least, so that the steps of an epoch may differ."""
    claim, found = "exp2-accuracy-bert-base", sides("bert-base", world_size=8)
    assert judged(claim, found).status == "reproduced"
    for place, one in enumerate(found["w+2d"]):
        steps = one.steps + one.steps // 2
        past = [[step * steps / one.steps, value] for step, value in one.metric_history]
        seconds = times(one.cell, steps, 1.0)
        each = [{**rank, "phase_seconds": seconds["phase_seconds"]} for rank in one.per_rank]
        found["w+2d"][place] = replace(one, metric_history=past, per_rank=each, **seconds)
    one = judged(claim, found)
    assert one.status == "inconclusive" and "the cells compared differ in steps" in one.reason


def on_hosts(records: list[CellResult], *hosts: str) -> list[CellResult]:
    """These trainings, one after the other on the hosts in turn."""
    names = [hosts[place % len(hosts)] for place in range(len(records))]
    return [replace(one, **source(ranks_per_host={name: 2})(one)) for one, name in zip(records, names, strict=True)]


@pytest.mark.parametrize(
    ("tested", "against", "status"),
    [
        (["fast"], ["slow"], "inconclusive"),
        (["fast"], ["slow", "other"], "inconclusive"),
        (["a"], ["a"], "reproduced"),
        (["a", "b"], ["b", "a"], "reproduced"),
        (["a1", "a2", "a3", "a4", "a5"], ["b1", "b2", "b3", "b4", "b5"], "reproduced"),
    ],
)
def test_a_host_of_its_own_leaves_the_times_of_a_side_open(tested: list[str], against: list[str], status: str) -> None:
    found = sides()
    found |= {"w+2d": on_hosts(found["w+2d"], *tested), "baseline": on_hosts(found["baseline"], *against)}
    for claim in (TIME, SPEED):
        one = judged(claim, found)
        assert one.status == status
        said = f"the two sides have no host in common, fast and {', '.join(sorted(against))}: a faster one counts for"
        assert (said in one.reason) == (status == "inconclusive")
    assert judged(ACCURACY, found).status == "reproduced"


@pytest.mark.parametrize("fact", ["link_rates", "ranks_per_host"])
def test_other_places_of_ranks_leave_times_open(fact: str) -> None:
    """Which hosts they are does not matter, but how many share the work."""
    found = sides(world_size=4)
    slower: dict[str, Any] = {"link_rates": {"a": "100Mbit"}, "ranks_per_host": {"a": 1, "b": 3}}
    found["baseline"] = [replace(one, **source(**{fact: slower[fact]})(one)) for one in found["baseline"]]
    one = judged(TIME, {name: those[:1] for name, those in found.items()})
    assert f"the cells compared differ in {fact}" in one.reason
    assert judged(ACCURACY, found).status == "reproduced" and fact not in judged(ACCURACY, found).reason
    if fact == "link_rates":
        assert judged(TIME, found).status == judged(SPEED, found).status == "inconclusive"


# --- in files ---


def written(folder: Path, records: list[CellResult]) -> Path:
    (folder / "cells").mkdir(parents=True)
    config = {"run": folder.name, "matrix": [one.cell.to_dict() for one in records]}
    (folder / "config.json").write_text(json.dumps(config))
    for one in records:
        one.save(folder / f"cells/{one.cell.name}.json")
    return folder


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
    (
        lambda one: {"step_seconds": one.step_seconds[:400]},
        "broken, step_seconds: 400 that took time are needed for 1000",
    ),
]


@pytest.mark.parametrize(("change", "reason"), LONG, ids=[reason for _, reason in LONG])
def test_a_long_training_is_checked_before_it_is_thinned(tmp_path: Path, change: Change, reason: str) -> None:
    fields: dict[str, Any] = {"model": "vgg-digits", "steps": 1000}
    records = [of_a_thousand(Cell(scheme="baseline", seed=seed, **fields), lambda one: {}) for seed in SEEDS]
    records += [of_a_thousand(Cell(scheme="w+2d", seed=seed, **fields), change) for seed in SEEDS]
    run = load_run(written(tmp_path / "x", records))
    one = next(one for one in ledger(run) if one.id == SPEED)
    assert len(run.results) == 10, "tables show them all"
    assert one.status == ("inconclusive" if reason else "reproduced") and reason in one.reason, one.reason


@pytest.mark.parametrize("text", [None, '{"run": "x", "matr'])
def test_without_its_matrix_a_run_decides_nothing(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "x", [one for those in sides().values() for one in those])
    assert next(one for one in ledger(load_run(folder)) if one.id == ACCURACY).status == "reproduced"
    (folder / "config.json").unlink() if text is None else (folder / "config.json").write_text(text)
    one = next(one for one in ledger(load_run(folder)) if one.id == ACCURACY)
    assert (
        one.status == "inconclusive" and "config.json of x cannot be read: what is missing is not known" in one.reason
    )
    assert main(["claims", "--run", str(folder)]) == 0
    assert capsys.readouterr().err.startswith("note: x: config.json cannot be read")


def test_what_a_record_says_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell(model="vgg-digits", scheme="w+2d")
    failed = CellResult(cell=cell, status="oom", reason="\x1b[2J\x1b[31mall reproduced\u202e")
    folder = written(tmp_path / "x", [make(Cell(model="vgg-digits"))])
    (folder / "config.json").write_text(json.dumps({"run": "x", "matrix": [{"model": "vgg-digits", "scheme": "w+2d"}]}))
    failed.save(folder / f"cells/{cell.name}.json")
    for command in ["claims"], ["report", "--show"]:
        assert main([command[0], "--run", str(folder), *command[1:]]) == 0
        said = "".join(capsys.readouterr())
        assert "\\x1b[2J" in said and all(one.isprintable() or one == "\n" for one in said), command


DISTANCES: list[dict[str, Any]] = [
    {"jensen_shannon": "0.02"},
    {"jensen_shannon": -1.0},
    {"jensen_shannon": True},
    {"jensen_shannon": 50.0},
    {"wasserstein": "1e400"},
]


@pytest.mark.parametrize("where", ["within", "between"])
@pytest.mark.parametrize("change", DISTANCES, ids=lambda change: str(change)[:30])
def test_a_distance_is_a_number(where: str, change: dict[str, Any]) -> None:
    seen = distances({"wasserstein": 0.1, "jensen_shannon": 0.02}, {"wasserstein": 0.3, "jensen_shannon": 0.1})
    for more, status in (({}, "reproduced"), (change, "inconclusive")):
        seen[where] = {**seen[where], **more}
        cell = Cell(model="vgg-digits", observe=("distributions",))
        records = {"tested": [make(cell, observations={"distributions": seen})]}
        assert judged("sec4-overlap-vgg19", records).status == status


# --- what is compared with code that needs torch, and what is committed ---


def test_metrics_are_those_of_training() -> None:
    tasks = {name: load(where) for name, where in TASKS.items()}
    assert {name: (task.metric, task.higher_is_better) for name, task in tasks.items()} == METRICS
    assert {metric for metric, _ in METRICS.values()} == load_claims().margins.keys()
