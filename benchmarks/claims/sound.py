"""Whether a record can have been measured: against its cell, its recipe and itself. What cannot is no evidence.

`CellResult` refuses what no table could show; this refuses what no training can have left.
"""

import math
from collections.abc import Iterator
from statistics import median

from benchmarks.data.counts import planned_steps
from benchmarks.measure.clock import StepClock
from benchmarks.record import BYTE_FIELDS, CellResult
from benchmarks.report.reading import STRETCHES
from benchmarks.workloads import WORKLOADS

SHARES = ("accuracy", "top1", "f1", "exact_match")
"""Metrics in per cent of what is right; perplexity is the other kind, of which less is better and 1 is the least."""
ROUNDING = 0.01
"""Relative difference that a speed may have from the times that it is worked out from."""
THINNED = 0.5
"""As ROUNDING, where only means of stretches of steps are at hand, whose median is not that of the steps."""
ITEMISED = "model_state_itemised"


def unsound(record: CellResult) -> str | None:
    """Return why a finished record cannot have been measured, in one line; None if it can."""
    checks = (_wrong_steps, _wrong_history, _wrong_metric, _wrong_ranks, _wrong_times)
    return next((problem for check in checks for problem in check(record)), None)


def _wrong_steps(record: CellResult) -> Iterator[str]:
    if record.steps < 1:
        yield "steps: 0, so nothing was trained"
    planned, at_least = planned_steps(record.cell)
    if planned and (record.steps < planned or (record.steps > planned and not at_least)):
        yield f"steps: {record.steps}, its cell and recipe have {planned}{' or more' if at_least else ''}"


def _wrong_history(record: CellResult) -> Iterator[str]:
    history = record.metric_history
    if not history or any(value is None for pair in history for value in pair):
        yield "metric_history: empty or null, so the metric was never evaluated"
        return
    taken = [int(step or 0) for step, _ in history]
    if taken != sorted(set(taken)) or taken[0] < 1 or taken[-1] != record.steps:
        yield f"metric_history: its steps, up to {taken[-1]}, are not those of a training of {record.steps}"
    if history[-1][1] != record.metric:
        yield f"metric: {record.metric} is not the end of metric_history, {history[-1][1]}"
    if (expected := _evaluations(record)) is not None and len(history) != expected:
        yield f"metric_history: {len(history)} evaluations, its recipe has {expected}"


def _evaluations(record: CellResult) -> int | None:
    """How many there are in a whole training; None where the recipe does not say."""
    workload = WORKLOADS[record.cell.model]
    if workload.evaluate_every:
        return math.ceil(record.steps / workload.evaluate_every)
    return None if record.cell.steps else workload.epochs


def _wrong_metric(record: CellResult) -> Iterator[str]:
    name, values = record.metric_name, [float(pair[1] or 0) for pair in record.metric_history]
    if name in SHARES and not (record.higher_is_better and min(values) >= 0 and max(values) <= 100):
        yield f"{name}: from 0 to 100 and higher is better; here up to {max(values):g}, {record.higher_is_better}"
    if name == "perplexity" and (record.higher_is_better or min(values) < 1):
        yield f"perplexity: 1 or more and lower is better; here from {min(values):g}, {not record.higher_is_better}"


def _wrong_ranks(record: CellResult) -> Iterator[str]:
    if int(record.peak_states_bytes or 0) != int(record.total_bytes or 0) + int(record.in_flight_bytes or 0):
        yield f"peak_states_bytes: {record.peak_states_bytes} is not total_bytes and in_flight_bytes together"
    own = [getattr(record, name) for name in BYTE_FIELDS]
    if record.per_rank and own not in [[rank.get(name) for name in BYTE_FIELDS] for rank in record.per_rank]:
        yield f"per_rank: no rank holds the bytes of the record, {record.total_bytes} in total"
    if record.provenance.get("threads") not in (None, record.cell.threads):
        yield f"threads: a rank computed with {record.provenance['threads']}, its cell has {record.cell.threads}"
    if record.per_rank and len(record.per_rank) != record.cell.world_size:
        yield f"per_rank: {len(record.per_rank)} ranks, its cell has {record.cell.world_size}"
    for rung in record.ladder:
        if rung["name"] == ITEMISED and rung["bytes"] not in (None, record.total_bytes):
            yield f"ladder: {ITEMISED} is {rung['bytes']} bytes, total_bytes {record.total_bytes}"


def _wrong_times(record: CellResult) -> Iterator[str]:
    seconds, speed = record.step_seconds, float(record.steps_per_second or 0)
    thinned = len(seconds) == STRETCHES and record.steps >= 2 * STRETCHES
    if (len(seconds) != record.steps and not thinned) or min(seconds) <= 0:
        yield f"step_seconds: {len(seconds)} that took time are needed for {record.steps} steps"
        return
    counted = 1 / median(seconds) if thinned else StepClock(list(seconds)).steps_per_second
    taken = sum(seconds) * (record.steps // STRETCHES if thinned else 1)
    if abs(speed - counted) > (THINNED if thinned else ROUNDING) * counted:
        yield f"steps_per_second: {speed:.4g}, by its step_seconds {counted:.4g}"
    if float(record.wall_seconds or 0) < (1 - ROUNDING) * taken:
        yield f"wall_seconds: {record.wall_seconds:.4g} is less than its steps took, {taken:.4g}"
