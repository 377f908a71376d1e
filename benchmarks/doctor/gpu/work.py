"""Do one step of the one-GPU check, keep its results, and compare its bytes with the plan. Imports no torch."""

import os
import re
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
from benchmarks.doctor.gpu.agreement import compare, disagreement
from benchmarks.doctor.gpu.plans import Plans
from benchmarks.doctor.gpu.steps import OUTPUT, Step
from benchmarks.launching.endings import overall
from benchmarks.launching.launch import launch

LOG_CHARACTERS = 6000
"""Characters kept from the end of a failed command's output."""
FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"':]+/)+""")
"""The folders of an absolute path."""
MOST_TIMES = 4.0
"""A step that takes this many times its estimate on a GPU is stopped as hanging: the others need the time."""


def do(step: Step, plans: Plans, seconds: float, most_times: float = MOST_TIMES) -> dict[str, Any]:
    """Do a step within `seconds` and return its record; only a signal ends more than the step."""
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
    return without_folders(record | {"wall_seconds": time.monotonic() - started})


def without_folders(value: Any) -> Any:
    """Return a record, or a part of one, in whose texts files are named without the folders of this machine."""
    if isinstance(value, dict):
        return {key: without_folders(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def _train(step: Step, plans: Plans, folder: Path, seconds: float) -> dict[str, Any]:
    """Train and measure a cell, and compare it with its plan."""
    assert step.cell is not None
    ends_at = time.monotonic() + seconds
    outcomes = launch(step.cell, folder, None, find_root(), seconds)
    said = overall(outcomes)
    ranks = [outcome.to_dict() for outcome in outcomes]
    for rank in ranks:  # the totals suffice here, at a hundredth of the size
        for name in ("items", "moments"):
            rank.get("memory", {}).pop(name, None)
    record: dict[str, Any] = {"status": said.status, "reason": said.reason, "ranks": ranks}
    if said.status == "ok":
        record |= {"planned": None, "agreement": []}
        try:
            record["planned"] = planned = plans.wait(step.cell, ends_at - time.monotonic())
            record["agreement"] = [compare(rank, planned) for rank in ranks]
        except RuntimeError as error:  # the measurement counts without a plan
            record["reason"] = str(error)
    return record


def _command(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a command to its end; return its JSON, and its output if it failed."""
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
    """Return whether a signal ended it. The launcher does not raise then, and the remaining steps are not wanted."""
    return any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ()))


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}, {record['wall_seconds']:.0f} s"
    head += f" (estimate {record['estimated_seconds']:.0f} s)"
    if record["status"] != "ok":
        return f"{head}: {record['reason']}"
    if not record.get("agreement"):
        return f"{head}: {record['reason']}" if record["reason"] else head
    total_bytes = record["ranks"][0]["memory"]["total_bytes"]
    return f"{head}: model states {total_bytes / 2**20:.1f} MiB, {disagreement(record) or 'as planned'}"
