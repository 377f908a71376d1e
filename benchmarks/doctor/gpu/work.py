"""How one step of the one-GPU check is done, what is kept of it, and whether bytes are as planned. Imports no torch."""

import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.prepared import find_root
from benchmarks.doctor.child import Job, run_together
from benchmarks.doctor.gpu.plans import Plans
from benchmarks.doctor.gpu.steps import OUTPUT, Step
from benchmarks.launching.launch import launch, overall

LOG_CHARACTERS = 6000
"""So much is kept of what a failed command has printed, from its end."""
MOST_TIMES = 4.0
"""A step that takes so many times its estimate on a GPU hangs, and is stopped: the others need the time."""


def do(step: Step, plans: Plans, seconds: float, most_times: float = MOST_TIMES) -> dict[str, Any]:
    """Do a step, in `seconds` at most, and return its record; only a signal ends more than the step."""
    started = time.monotonic()
    limit = min(seconds, most_times * step.estimated_seconds)
    record: dict[str, Any] = {"name": step.name, "estimated_seconds": step.estimated_seconds}
    record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    record |= {"cell": step.cell.to_dict()} if step.cell else {"command": list(step.command)}
    try:
        with tempfile.TemporaryDirectory(prefix="resireduce-gpu-check-") as folder:
            record |= _train(step, plans, Path(folder), limit) if step.cell else _command(step, Path(folder), limit)
    except Exception as error:
        record |= {"status": "error", "reason": f"{type(error).__name__}: {error}"}
    return record | {"wall_seconds": time.monotonic() - started}


def _train(step: Step, plans: Plans, folder: Path, seconds: float) -> dict[str, Any]:
    """Train and measure a cell, and hold it against its plan."""
    assert step.cell is not None
    ends_at = time.monotonic() + seconds
    outcomes = launch(step.cell, folder, None, find_root(), seconds)
    said = overall(outcomes)
    ranks = [outcome.to_dict() for outcome in outcomes]
    for rank in ranks:  # the totals say enough here, and take a hundredth of the room
        for name in ("items", "moments"):
            rank.get("memory", {}).pop(name, None)
    record: dict[str, Any] = {"status": said.status, "reason": said.reason, "ranks": ranks}
    if said.status == "ok":
        record["planned"] = planned = plans.wait(step.cell, ends_at - time.monotonic())
        record["agreement"] = [compare(rank, planned) for rank in ranks]
    return record


def _command(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a command to its end: the JSON that it has left, and what it has printed if it failed."""
    output = folder / "result.json"
    line = [str(output) if part == OUTPUT else part for part in step.command]
    (ended,) = run_together([Job([sys.executable, "-m", *line], os.environ, ROOT)], seconds)
    record: dict[str, Any] = {"result": load_json(output) if output.exists() else None}
    if ended.code == 0:
        return record | {"status": "ok", "reason": None}
    text = ended.output.strip()[-LOG_CHARACTERS:]
    last = text.splitlines()[-1] if text else f"exit status {ended.code}, and nothing printed"
    timeout = {"status": "timeout", "reason": f"not done after {seconds:.0f} s; last it said: {last}"}
    return record | (timeout if ended.code is None else {"status": "failed", "reason": last}) | {"log": text}


def was_interrupted(record: dict[str, Any]) -> bool:
    """Whether a signal ended it, which the launcher keeps to itself: nobody wants the other steps then."""
    return any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ()))


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}, {record['wall_seconds']:.0f} s"
    head += f" (estimate {record['estimated_seconds']:.0f} s)"
    if record["status"] != "ok":
        return f"{head}: {record['reason']}"
    if "agreement" not in record:
        return head
    total_bytes = record["ranks"][0]["memory"]["total_bytes"]
    return f"{head}: model states {total_bytes / 2**20:.1f} MiB, {disagreement(record) or 'as planned'}"


def disagreement(record: dict[str, Any]) -> str | None:
    """Return what of a cell's memory is not as planned, as measured by planned; None if all is, or nothing was held."""
    found = []
    for agreement in record.get("agreement", ()):
        compared = agreement["states"] | {name: one for name, one in agreement.items() if name in BESIDE}
        wrong = {name: one for name, one in compared.items() if not one["agrees"]}
        found += [f"{name} {one['measured']} of {one['expected']}" for name, one in wrong.items()]
    return f"NOT as planned: {', '.join(found)}" if found else None


STATES = ("parameters", "gradients", "residuals", "optimizer_states", "total")
"""Must be as planned, to the byte."""
BESIDE = ("peak_states", "allocated")
"""What is compared beside them, with a tolerance."""
ALLOCATED = "allocated"
"""The rung of the ladder that is read at a step boundary, gradients included."""
KNOWN = ("states", "buffers", "workspaces", "rounding")
"""What allocated bytes are made up of."""
ALLOCATED_TOLERANCE = 0.01
PEAK_TOLERANCE = 0.05


def compare(outcome: dict[str, Any], planned: dict[str, int | float]) -> dict[str, Any]:
    """Return what agrees in one rank's outcome: by name, measured, expected, ratio and whether that is near enough.

    `states`: each as planned, to the byte. `peak_states`: at the fullest moment of a step. `allocated`: what the
    allocator has given out at a step boundary since before the model was built, of what the tensors add up to that are
    known to lie there: the model states on the device, the model's buffers, cuBLAS's workspaces, and what the allocator
    has given beyond what was asked for, as its own snapshot says. Missing without a GPU.
    """
    memory = outcome["memory"]
    states = {name: _compared(memory[f"{name}_bytes"], planned[name], 0.0) for name in STATES}
    peak = _compared(memory["peak_states_bytes"], planned["peak_states"], PEAK_TOLERANCE)
    found: dict[str, Any] = {"states": states, "peak_states": peak}
    allocated, known = rung_bytes(memory, ALLOCATED), memory.get("difference")
    if allocated is not None and known:
        expected = sum(known[f"{name}_bytes"] for name in KNOWN)
        found["allocated"] = _compared(allocated - known["baseline_bytes"], expected, ALLOCATED_TOLERANCE)
    every = [*states.values(), *(found[name] for name in BESIDE if name in found)]
    return found | {"agrees": all(one["agrees"] for one in every)}


def rung_bytes(memory: dict[str, Any], name: str) -> int | None:
    """Return the bytes of one rung of a rank's ladder; None where it is missing."""
    rungs = (rung for rung in memory.get("ladder") or () if rung.get("name") == name)
    return next((rung.get("bytes") for rung in rungs), None)


def _compared(measured: float, expected: float, tolerance: float) -> dict[str, Any]:
    ratio = measured / expected if expected else None
    agrees = measured == expected or (ratio is not None and abs(ratio - 1) <= tolerance)
    return {"measured": measured, "expected": expected, "ratio": ratio, "agrees": agrees}
