"""What no training can have left is refused: figures that contradict each other, the cell, its recipe or its origin."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.claims.sound import METRICS, unsound, wrong_seconds
from benchmarks.core.cell import Cell
from benchmarks.core.record import STATE_FIELDS, CellResult
from benchmarks.core.registry import TASKS
from resireduce.scheme import load
from tests.claim_records import make, states

Change = Callable[[CellResult], dict[str, Any]]


def rank(one: CellResult, **change: int) -> dict[str, Any]:
    return {name: getattr(one, name) for name in states(one.cell)} | change


def observed(**point: Any) -> Change:
    return lambda one: {"observations": {"contraction": {"points": [point]}}}


def source(**facts: Any) -> Change:
    return lambda one: {"provenance": {**one.provenance, **facts}}


def history(*pairs: list[Any]) -> Change:
    """Other evaluations at the end."""
    return lambda one: {"metric_history": [*one.metric_history[: 4 - len(pairs)], *pairs]}


IMPOSSIBLE: list[tuple[Change, str]] = [
    (lambda one: {"steps": 0, "step_seconds": []}, "steps: 0, so nothing was trained"),
    (lambda one: {"steps": 50, "metric_history": [[50, one.metric]]}, "steps: 50, its cell and recipe have 200"),
    (lambda one: {"metric_history": []}, "metric_history: empty or null"),
    (history([200, 12.0]), "is not the end of metric_history, 12"),
    (lambda one: {"metric_history": one.metric_history[:-1]}, "metric_history: its steps, up to 150, are not those"),
    (lambda one: {"metric_history": [[200, one.metric]]}, "evaluations after the steps [200], its recipe has one"),
    (
        lambda one: {"metric_history": [[54, one.metric_history[0][1]], *one.metric_history[1:]]},
        "its recipe has one every 50 steps",
    ),
    (lambda one: {"metric_name": "f1", "metrics": {"f1": one.metric}}, "metric_name: f1, higher_is_better True; its"),
    (lambda one: {"metric_history": [[50, 101.0], *one.metric_history[1:]]}, "accuracy: from 0 to 100; here from "),
    (lambda one: {"metrics": {}}, "metrics: missing"),
    (lambda one: {"total_bytes": 1}, "total_bytes: 1 is not the sum"),
    (lambda one: {"peak_states_bytes": 1}, "per_rank: no rank holds the bytes of the record"),
    (lambda one: {"per_rank": [rank(one, total_bytes=1, residuals_bytes=2)] * 2}, "per_rank: no rank holds the bytes"),
    (lambda one: {"per_rank": [rank(one)]}, "per_rank: 1 ranks, its cell has 2"),
    (lambda one: {"per_rank": [rank(one), rank(one, parameters_bytes=-1)]}, "per_rank: rank 1: [-1, "),
    (
        lambda one: {"per_rank": [rank(one), rank(one, in_flight_bytes=7, peak_states_bytes=one.total_bytes + 7)]},
        "per_rank: rank 1: peak_states_bytes: ",
    ),
    (lambda one: {"failure": {"rank": 1, "step": 61}}, "failure: {'rank': 1, 'step': 61} in the record of a"),
    (lambda one: {"per_rank": [{**held, "status": "oom"} for held in one.per_rank]}, "failure: oom in the record of"),
    (
        lambda one: {"ladder": [{"name": "peak_allocated", "method": "as planted", "bytes": 7}]},
        "ladder: peak_allocated is 7 bytes, less than its model",
    ),
    (observed(cosine=1.1), "observations: contraction: cosine is 1.1; it is a number from -1 to 1"),
    (lambda one: {"per_rank": [one.per_rank[0]] * 2}, "per_rank: two ranks took the same seconds in every phase"),
    (lambda one: {"steps_per_second": 999.0}, "steps_per_second: 999, by its step_seconds"),
    (lambda one: {"step_seconds": one.step_seconds[:7]}, "step_seconds: 7 that took time are needed for 200"),
    (lambda one: {"wall_seconds": 1.0}, "wall_seconds: 1 is less than its steps took"),
    (
        lambda one: source(content={"cell": replace(one.cell, scheme="none").to_dict()})(one),
        "provenance: it was measured for vgg-digits.topk.none.kept",
    ),
    (source(content={"resireduce": "r1"}), "provenance: its content, with the cell it was run for, is missing"),
    (source(data_hash=None, device=None), "provenance: device, data_hash: missing"),
    (source(backend="local"), "backend: local, its cell has torch"),
    (source(threads=2), "threads: 2, its cell has 1"),
]


@pytest.mark.parametrize(("change", "reason"), IMPOSSIBLE, ids=[reason for _, reason in IMPOSSIBLE])
def test_what_no_training_can_leave_is_no_evidence(change: Change, reason: str) -> None:
    one = make(Cell(model="vgg-digits", scheme="w+2d"))
    assert unsound(one) is None and not wrong_seconds(one) and set(STATE_FIELDS) <= set(one.per_rank[0])
    try:
        said = unsound(changed := replace(one, **change(one))) or wrong_seconds(changed)
    except ValueError as refused:  # a record that is no record; a file with it is a hole
        said = str(refused)
    assert reason in said


def test_metrics_are_those_of_training() -> None:
    tasks = {name: load(where) for name, where in TASKS.items()}
    assert {name: (task.metric, task.higher_is_better) for name, task in tasks.items()} == METRICS
    assert {metric for metric, _ in METRICS.values()} == load_claims().margins.keys()
