"""How the ranks of a cell have ended: what each has left, or else what is known of its end. Imports no torch."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.core.outcome import Outcome
from benchmarks.core.stop_policy import Limits
from benchmarks.launching.processes import RankProcess, how_ended
from benchmarks.launching.slurm.step import StepRank

Rank = RankProcess | StepRank
"""One rank as its launcher sees it: a process here, or one of many that another program has started."""
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Return codes of a killed process: as its parent sees it, and through a shell."""
PRECEDENCE = ("oom", "diverged", "timeout", "node-fail", "error", "ok")
"""If ranks end differently, the first of these statuses counts; the other ranks failed because of it."""
DOCTOR = "python -m benchmarks doctor says what is wrong with the machine"
STOPPED = Outcome(status="error", reason="stopped because another rank had failed")
"""Outcome of a rank that was still running after the grace period; of two errors, the other one tells the cause."""


def outcomes_of(
    folder: Path,
    ranks: Sequence[Rank],
    running: Sequence[bool],
    killed_by_kernel: bool,
    ended: Outcome,
    signals: Sequence[int],
) -> list[Outcome]:
    """Return each rank's outcome, once all have ended.

    Args:
        folder: has what the ranks left.
        ranks: in the order of their numbers.
        running: of each, whether it was ended.
        killed_by_kernel: whether the kernel killed any process to free memory.
        ended: the outcome of those that were ended.
        signals: those that asked this process to end.
    """
    outcomes = [
        outcome_of(folder, rank, process, killed_by_kernel and not was)
        for rank, (process, was) in enumerate(zip(ranks, running, strict=True))
    ]
    return [_explain(it, was, ended, signals) for was, it in zip(running, outcomes, strict=True)]


def _explain(outcome: Outcome, was_running: bool, ended: Outcome, signals: Sequence[int]) -> Outcome:
    """Return the outcome of a rank, with the reason for ending it if it was ended."""
    if was_running and outcome.status == "error":
        return ended
    asked = ended is not STOPPED and not ended.failure
    if was_running and asked and outcome.status == "timeout" and not signals:
        # Keep what it had measured when it was asked to stop; only this process knows why it was asked.
        where = {name: value for name, value in outcome.failure.items() if name != "interrupted"}
        return replace(outcome, failure=where, status=ended.status, reason=ended.reason)
    if signals and outcome.status == "error":
        reason = f"stopped by {signal.Signals(signals[0]).name} before it could write a checkpoint; run again"
        return replace(outcome, status="timeout", reason=reason, failure={"interrupted": True})
    return outcome


def out_of_time(timeout_seconds: float, limits: Limits) -> Outcome:
    """Return the outcome of ranks that ran out of time."""
    if limits.seconds_left <= 0:
        reason = "had not stopped by its deadline; run again"
        return Outcome(status="timeout", reason=reason, failure={"interrupted": True})
    return Outcome(status="timeout", reason=f"not done after {timeout_seconds:g} s; its log says how far it came")


def left_by(folder: Path, rank: int) -> Path:
    """Return the file in `folder` in which a rank leaves its outcome."""
    return folder / f"rank{rank}.json"


def outcome_of(folder: Path, rank: int, process: Rank, killed_by_kernel: bool = False) -> Outcome:
    """Return the outcome of an ended rank; `killed_by_kernel`: whether the kernel killed any process to free memory."""
    path = left_by(folder, rank)
    if path.exists():
        return Outcome.load(path)
    if killed_by_kernel and process.returncode in KILLED:
        return Outcome(status="oom", reason=f"rank {rank} was killed by the kernel, whose memory was full")
    if verdict := process.verdict():
        return verdict
    if said := process.complaint():
        return Outcome(status="error", reason=f"rank {rank} was not started: {said}; {DOCTOR}")
    assert process.returncode is not None
    return Outcome(status="error", reason=f"rank {rank} {how_ended(process.returncode)}; its log says more")


def overall(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that explains the others."""
    return min(outcomes, key=lambda it: (PRECEDENCE.index(it.status), it == STOPPED, bool(it.failure.get("lost_peer"))))
