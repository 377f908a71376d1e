"""Check the seconds of all steps of a record against its speed, its total time and its phases. Imports no torch.

Records are checked as they are read, before long trainings are thinned to the means of stretches
(`benchmarks.analysis.reading`), in which a speed could no longer be found again.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.core.record import CellResult
from benchmarks.core.sample_counts import WARMUP_STEPS, steps_per_second

ROUNDING = 0.01
"""Largest relative difference between a time and the seconds that it is computed from."""
BY_EVENTS = 0.15
"""Largest relative difference between a GPU's phases, which its events time, and the seconds of the host's clock."""
OBSERVED_STEPS, OBSERVED_SHARE = 50, 4
"""Most steps after warm-up whose phases are timed, and of how many steps one is: a test compares with
`benchmarks.training.measure.probe`, which imports torch."""


def wrong_seconds(record: CellResult) -> Iterator[str]:
    """Yield one line for each time that contradicts the seconds of the steps; all steps must have theirs."""
    seconds, speed = record.step_seconds, float(record.steps_per_second or 0)
    if len(seconds) != record.steps or min(seconds, default=0) <= 0:
        yield f"step_seconds: {len(seconds)} that took time are needed for {record.steps} steps"
        return
    if abs(speed - (counted := steps_per_second(seconds))) > ROUNDING * counted:
        yield f"steps_per_second: {speed:.4g}, by its step_seconds {counted:.4g}"
    if float(record.wall_seconds or 0) < (1 - ROUNDING) * sum(seconds):
        yield f"wall_seconds: {record.wall_seconds:.4g} is less than its steps took, {sum(seconds):.4g}"
    step, seen = record.phase_seconds.get("step"), observed(record)
    if step is not None and seen:
        band = ROUNDING if record.provenance.get("device") in (None, "cpu") else BY_EVENTS
        if abs(step - (counted := median(seen))) > band * counted:
            yield f"phase_seconds: step: {step:.4g}, by the step_seconds that it was timed in {counted:.4g}"


def wrong_phases(record: CellResult) -> Iterator[str]:
    """Yield one line if a record's phases are not those of its rank 0; a record without its ranks' phases has none."""
    own = record.per_rank[0].get("phase_seconds") if record.per_rank else None
    if own != record.phase_seconds:
        yield "phase_seconds: not those of rank 0 in per_rank"


def contradicted_seconds(record: CellResult) -> str:
    """Return in one line what is wrong with the times of a whole record, as it is in its file; "" if nothing is."""
    return next((problem for check in (wrong_seconds, wrong_phases) for problem in check(record)), "")


def observed(record: CellResult) -> Sequence[float]:
    """Return the seconds of the steps whose phases were timed: some after the warm-up of the last start."""
    starts = record.provenance.get("resumed_at_steps")
    first = starts[-1] if isinstance(starts, list) and starts and isinstance(starts[-1], int) else 0
    own = record.step_seconds[first:] if 0 <= first < record.steps else []
    warmup = min(WARMUP_STEPS, len(own) // 2)
    return own[warmup : warmup + min(OBSERVED_STEPS, max(1, (len(own) - warmup) // OBSERVED_SHARE))]
