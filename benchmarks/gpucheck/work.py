"""How one step of the one-GPU check is done, and what is kept of it: what goes wrong is a result. Imports no torch."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.data.prepared import find_root
from benchmarks.files import load_json
from benchmarks.gpucheck.agreement import compare
from benchmarks.gpucheck.plans import Plans
from benchmarks.gpucheck.steps import OUTPUT, Step
from benchmarks.launch import launch, overall
from benchmarks.measure.provenance import ROOT

LOG_CHARACTERS = 6000
"""Of what a command that failed has printed, its end."""
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
    for outcome in outcomes:  # the totals say enough here, and take a hundredth of the room
        outcome.get("memory", {}).pop("items", None)
    record = {"status": said["status"], "reason": said["reason"], "ranks": outcomes}
    if said["status"] == "ok":
        record["planned"] = planned = plans.wait(step.cell, ends_at - time.monotonic())
        record["agreement"] = [compare(outcome, planned) for outcome in outcomes]
    return record


def _command(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a command to its end: the JSON that it has left, and what it has printed if it failed."""
    output, log = folder / "result.json", folder / "log"
    line = [str(output) if part == OUTPUT else part for part in step.command]
    code = _run([sys.executable, "-m", *line], log, seconds)
    record: dict[str, Any] = {"result": load_json(output) if output.exists() else None}
    if code == 0:
        return record | {"status": "ok", "reason": None}
    text = log.read_text(encoding="utf-8", errors="replace").strip()[-LOG_CHARACTERS:]
    last = text.splitlines()[-1] if text else f"exit status {code}, and nothing printed"
    timeout = {"status": "timeout", "reason": f"not done after {seconds:.0f} s; last it said: {last}"}
    return record | (timeout if code is None else {"status": "failed", "reason": last}) | {"log": text}


def _run(line: list[str], log: Path, seconds: float) -> int | None:
    """The exit status of a process, whose own processes end with it; None if it was stopped for its time."""
    with log.open("wb") as file:
        process = subprocess.Popen(line, stdout=file, stderr=file, cwd=ROOT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # if all of them have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
        compared = {
            **agreement["states"],
            **{key: agreement[key] for key in ("peak_states", "allocated") if key in agreement},
        }
        found += [
            f"{name} {one['measured']} of {one['expected']}" for name, one in compared.items() if not one["agrees"]
        ]
    return f"NOT as planned: {', '.join(found)}" if found else None
