"""How the ranks of a cell have ended, and the record and the line for the screen that come of it. Imports no torch."""

import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import file_hash
from benchmarks.core.outcome import Measured, Outcome
from benchmarks.core.provenance import job_facts, provenance
from benchmarks.core.record import BYTE_FIELDS, CellResult, try_load
from benchmarks.core.stop_policy import Limits
from benchmarks.launching.processes import RankProcess, how_ended
from benchmarks.launching.slurm.working import keep

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Return codes of a killed process: as its parent sees it, and through a shell."""
PRECEDENCE = ("oom", "diverged", "timeout", "node-fail", "error", "ok")
"""If ranks end differently, the first of these statuses counts; the other ranks failed because of it."""
DOCTOR = "python -m benchmarks doctor says what is wrong with the machine"
STOPPED = Outcome(status="error", reason="stopped because another rank had failed")
"""Outcome of a rank that was still running after the grace period; of two errors, the other one tells the cause."""


def outcomes_of(
    folder: Path,
    ranks: Sequence[RankProcess],
    running: Sequence[bool],
    killed_by_kernel: bool,
    ended: Outcome,
    signals: Sequence[int],
) -> list[Outcome]:
    """Return the outcome of each of `ranks`, once all have ended, from what they left in `folder`.

    Those that were `running` were ended, with the outcome `ended`, or by one of the `signals` to this process;
    `killed_by_kernel`: whether the kernel killed any process to free memory.
    """
    outcomes = []
    for rank, (process, was_running) in enumerate(zip(ranks, running, strict=True)):
        outcome = outcome_of(folder, rank, process, killed_by_kernel and not was_running)
        if was_running and outcome.status == "error":
            outcome = ended
        elif signals and outcome.status == "error":
            reason = f"stopped by {signal.Signals(signals[0]).name} before it could write a checkpoint; run again"
            outcome = replace(outcome, status="timeout", reason=reason, failure={"interrupted": True})
        outcomes.append(outcome)
    return outcomes


def out_of_time(timeout_seconds: float, limits: Limits) -> Outcome:
    """Return the outcome of ranks that ran out of time."""
    if limits.seconds_left <= 0:
        reason = "had not stopped by its deadline; run again"
        return Outcome(status="timeout", reason=reason, failure={"interrupted": True})
    return Outcome(status="timeout", reason=f"not done after {timeout_seconds:g} s; its log says how far it came")


def left_by(folder: Path, rank: int) -> Path:
    """Return the file in `folder` in which a rank leaves its outcome."""
    return folder / f"rank{rank}.json"


def outcome_of(folder: Path, rank: int, process: RankProcess, killed_by_kernel: bool = False) -> Outcome:
    """Return the outcome of an ended rank; `killed_by_kernel`: whether the kernel killed any process to free memory."""
    path = left_by(folder, rank)
    if path.exists():
        return Outcome.load(path)
    code = process.exit_status(rank)
    if killed_by_kernel and code in KILLED:
        return Outcome(status="oom", reason=f"rank {rank} was killed by the kernel, whose memory was full")
    if verdict := process.verdict():
        return verdict
    if said := process.complaint(rank):
        return Outcome(status="error", reason=f"rank {rank} was not started: {said}; {DOCTOR}")
    assert code is not None
    return Outcome(status="error", reason=f"rank {rank} {how_ended(code)}; its log says more")


def overall(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that explains the others."""
    return min(outcomes, key=lambda it: (PRECEDENCE.index(it.status), it == STOPPED, bool(it.failure.get("lost_peer"))))


MEASURED = tuple(field.name for field in fields(Measured))
FINAL = ("ok", "oom", "timeout", "diverged")
"""Statuses that are results of the cell. The others mean that it could not be run, and are worth another try."""
PARTIAL = ("metric_name", "higher_is_better", "metric_history", "steps", "step_seconds")
"""Values that a rank leaves even if it did not finish."""


def to_result(
    cell: Cell,
    outcomes: Sequence[Outcome],
    wall_seconds: float,
    weights: Path | None,
    image: dict[str, Any] | None = None,
) -> CellResult:
    """Return the record of a cell from its ranks' outcomes: metrics of rank 0, bytes of the rank that holds most.

    `image` has the facts of the image that they ran in.
    """
    said, first = overall(outcomes), outcomes[0]
    source = provenance(image) | {"weights_hash": file_hash(weights) if weights else None}
    if facts := [outcome.facts for outcome in outcomes if outcome.facts]:
        source |= job_facts(facts)
    if said.status != "ok":
        values = _until_then(outcomes, said)
    else:
        source |= {name: getattr(first, name) for name in ("resumed_at_steps", "data_hash", "threads")}
        wall_seconds += first.earlier_seconds
        values = {name: getattr(first, name) for name in MEASURED} | _memory([outcome.memory for outcome in outcomes])
    values |= {"status": said.status, "reason": said.reason}
    return CellResult(cell=cell, wall_seconds=wall_seconds, provenance=source, **values)


def _memory(memories: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the bytes and moments of the rank with the highest peak, and the bytes of every rank."""
    rank = max(range(len(memories)), key=lambda rank: memories[rank]["peak_states_bytes"])
    fullest = memories[rank]
    listed = {"moments": {"rank": rank, **fullest["moments"]}} if fullest.get("moments") else {}
    each = [{name: value for name, value in memory.items() if name != "moments"} for memory in memories]
    values = {name: fullest[name] for name in (*BYTE_FIELDS, "ladder")}
    return {**values, **listed, "phase_seconds": memories[0]["phase_seconds"], "per_rank": each}


def _until_then(outcomes: Sequence[Outcome], said: Outcome) -> dict[str, Any]:
    """Return the measurements of ranks that did not finish, and where the rank that explains the failure ended."""
    known = [said, *(outcome for outcome in outcomes if outcome is not said)]
    measured = next((outcome for outcome in known if outcome.steps is not None), None)
    values = {name: getattr(measured, name) for name in PARTIAL} if measured else {}
    residents = [outcome.peak_resident_bytes for outcome in outcomes if outcome.peak_resident_bytes is not None]
    rank = next(rank for rank, outcome in enumerate(outcomes) if outcome is said)
    # A rank that left nothing was in the same step as the others, which waited for it.
    where = {**(measured.failure if measured else {}), **said.failure, "rank": rank}
    values["failure"] = {name: value for name, value in where.items() if name != "lost_peer"}
    values["peak_resident_bytes"] = max(residents, default=None)
    said_of = ("status", "reason", "steps", "peak_resident_bytes")
    values["per_rank"] = [{"rank": n} | {name: getattr(it, name) for name in said_of} for n, it in enumerate(outcomes)]
    return values


def summary(result: CellResult, baseline_bytes: int | None = None) -> str:
    """Return one line for the screen; model states are normalised by `baseline_bytes`."""
    if result.status != "ok":
        return f"{result.cell.name}: {result.status}: {result.reason}"
    total_bytes = result.total_bytes or 0
    share = f", normalised {total_bytes / baseline_bytes:.1%}" if baseline_bytes else ""
    return (
        f"{result.cell.name}: {result.metric_name} {result.metric:.3f}, "
        f"model states {total_bytes / 2**20:.2f} MiB{share}, "
        f"{result.steps_per_second:.1f} steps/s, {result.wall_seconds:.0f} s"
    )


def leave(
    result: CellResult, output: Path, baseline_bytes: int | None = None, copy: Path | None = None, note: str = ""
) -> int:
    """Write the record after its `copy`, print a summary with a `note`, and return the exit status.

    The file name contains "failed" if the cell could not be run, is to be resumed, or did not end well while there
    already is a record that did.
    """
    failed = output.with_suffix(".failed.json")
    unfinished = result.status not in FINAL or result.failure.get("interrupted")
    if unfinished or (result.status != "ok" and (known := try_load(output)) and known.status == "ok"):
        _save(result, failed)
        print(summary(result, baseline_bytes), file=sys.stderr, flush=True)
        return 1
    if copy is not None:
        keep(result, copy)
    _save(result, output)
    failed.unlink(missing_ok=True)
    print(summary(result, baseline_bytes) + note, flush=True)
    return 0


def _save(result: CellResult, path: Path) -> None:
    """Write the record; a disk that has become full does not lose the measurements."""
    try:
        result.save(path)
    except OSError as error:
        elsewhere = Path(tempfile.mkdtemp(prefix="resireduce-record-")) / path.name
        result.save(elsewhere)
        raise OSError(f"{path} cannot be written ({error.strerror}); the record is in {elsewhere}") from None
