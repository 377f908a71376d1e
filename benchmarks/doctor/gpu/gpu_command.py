"""The command line of the one-GPU check, and the summary of what its stretches have left. Imports no torch."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.analysis.gpu_records import (
    BASELINE,
    ITEMISED,
    PEAK,
    Case,
    Device,
    Unread,
    bytes_at,
    matching,
    read_device,
)
from benchmarks.core.checks import seconds
from benchmarks.core.devices import DEVICE_VARIABLE, DEVICES
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import provenance
from benchmarks.doctor.gpu.stretch import (
    GROUPS,
    LIMIT_SECONDS,
    MINUTES,
    Step,
    Stretch,
    code_of,
    list_steps,
    read_files,
)
from benchmarks.launching.processes import Job, run_together
from resireduce.errors import ConfigError, choose

RUNGS = {
    "model_states": ITEMISED,
    "allocated": "allocated",
    "allocated_without_gradients": "allocated_without_gradients",
    "peak_allocated": PEAK,
}
"""Names in a row of summary.json, each with the rung of the ladder that it is read at."""


def summarise(folder: Path, output: Path) -> Iterator[Path]:
    """Copy the files of each device below `folder` to `output`, and yield its summary.json: what each cell saved.

    Raises ConfigError, one line, if there are no results or a file of them cannot be read.
    """
    names = sorted({path.parent.name for group in GROUPS for path in folder.glob(f"*/{group}.json")})
    if not names:
        raise ConfigError(
            f"summary: {folder} holds no results of a device; run: python -m benchmarks measure gpu --everything first"
        )
    for name in names:
        groups = list(read_files(folder / name))
        for values in groups:
            _name_commit(values)
            save_json(values, output / name / f"{values['group']}.json")
        device = read_device(output / name)
        sources = [values["provenance"] for values in groups]
        rows = [_row(case, device) for case in device.cases]
        path = output / name / "summary.json"
        failed = [case for values in groups for case in values["cases"] if case["status"] != "ok"]
        missing = {case["name"]: f"{case['status']}: {case['reason']}" for case in failed}
        missing |= {name: reason for values in groups for name, reason in values["not_run"].items()}
        save_json({"memory": rows, "missing": missing, "provenance": sources, "notes": device.notes}, path)
        yield path


def _name_commit(values: dict[str, Any]) -> None:
    """Set the commit of cases measured without git, if the present code is the same as theirs."""
    code, here = code_of(values["group"]), provenance()
    for case in values["cases"]:
        if case.get("commit") is None and case["code"] == code:
            case["commit"] = here["commit"]
            values["provenance"] |= {"commit": here["commit"], "dirty": here["dirty"]}


def _row(case: Case, device: Device) -> dict[str, Any]:
    """Return the bytes of a cell at some rungs, and what it saved at two of them; None where missing."""
    row: dict[str, Any] = {**case.cell.to_dict(), "status": case.status, "reason": case.doubt or case.reason}
    baseline = next((one for one in matching(device, case.cell.model, BASELINE) if one.ranks), None)
    row |= {f"{name}_bytes": _bytes(case, rung) for name, rung in RUNGS.items()}
    for name, rung in (("saved", ITEMISED), ("peak_allocated_saved", PEAK)):
        mine, theirs = _bytes(case, rung), _bytes(baseline, rung)
        row[name] = 1 - mine / theirs if mine and theirs else None
    return row


def _bytes(case: Case | None, rung: str) -> int | None:
    try:
        return bytes_at(case, rung) if case and case.ranks else None
    except Unread:
        return None


OUTPUT, REFERENCE = Path("results/runs/gpu-check"), Path("results/reference")
DEVICE_SECONDS = 300.0
"""How long torch may take to load and to name the device."""
_say = partial(print, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--everything", action="store_true", help="all steps that are not done yet, the next stretch of")
    what.add_argument("--only", metavar="GROUP", nargs="+", help=f"those of some groups: {', '.join(GROUPS)}")
    text = f"copy what stretches left in a folder to OUTPUT/<device> (default there: {REFERENCE}), with a summary"
    what.add_argument("--summary", metavar="DIR", type=Path, help=text)
    limit = f"how long a stretch may take (default: {LIMIT_SECONDS:g})"
    parser.add_argument("--seconds", metavar="S", default=LIMIT_SECONDS, help=limit)
    parser.add_argument("--device", default="cuda", help=f"{' or '.join(DEVICES)} (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="smallest models and a step or two: does it all run?")
    parser.add_argument("--dry-run", action="store_true", help="list the steps, and stop")
    text = f"folder of results, also of those to go on from (default: {OUTPUT}); they lie in one named by the device"
    parser.add_argument("--output", metavar="DIR", type=Path, help=text)


def main(args: argparse.Namespace) -> int:
    """Do the steps of a stretch, list them, or copy results. Returns 0 even if steps failed: the files show that."""
    if args.summary is not None:
        for path in summarise(args.summary, args.output or REFERENCE):
            print(path)
        return 0
    choose("device", args.device, DEVICES)
    limit = seconds("seconds", args.seconds)
    groups = [choose("only", group, GROUPS) for group in args.only or GROUPS]
    steps = [step for step in list_steps(args.device, args.tiny) if step.group in groups]
    if args.dry_run:
        print("\n".join(listed(steps)))
        return 0
    device = find_device(args.device)
    # nvidia-h200; cpu-tiny for a trial run.
    name = re.sub(r"[^a-z0-9]+", "-", str(device.get("device") or "cpu").lower()).strip("-")
    folder = (args.output or OUTPUT) / (f"{name}-tiny" if args.tiny else name)
    writable("output", folder / f"{groups[0]}.json")
    stretch = Stretch(steps, folder, device, seconds=limit, say=_say)
    stretch.run()
    for name, record in stretch.records.items():
        if record["reason"]:
            _say(f"  {name}: {record['reason']}")
    _say(f"{folder}: {len(stretch.records)} of {len(steps)} steps, {len(stretch.todo())} for the next stretch")
    return 0


def listed(steps: Sequence[Step]) -> Iterator[str]:
    """Yield a line for each step, in order: about how many minutes it takes, and all until its end; then the sum."""
    until = 0.0
    for step in steps:
        until += MINUTES[step.group]
        yield f"{MINUTES[step.group]:4.1f} min, until {until:4.1f}  {step.name}"
    yield f"{until:.0f} minutes on an H200, in stretches of {LIMIT_SECONDS / 60:.0f}; most valuable first"


def find_device(device: str) -> dict[str, Any]:
    """Return the facts about the device that cells will run on, and hide other GPUs from their processes.

    It is the first visible GPU, which two ranks may share. Raises ConfigError, with one line, if a GPU is required and
    there is none.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    chosen = {DEVICE_VARIABLE: device, "CUDA_VISIBLE_DEVICES": first if device == "cuda" else ""}
    # In another process, as a context here would count in the measured memory.
    command = [sys.executable, "-m", "benchmarks.doctor.in_child", "device"]
    (ended,) = run_together([Job(command, os.environ | chosen)], DEVICE_SECONDS)
    facts: dict[str, Any] = next(iter(ended.reports()), {})
    if device == "cuda" and not facts.get("uuid"):
        raise ConfigError(
            f"device: 'cuda' is not allowed here: torch {facts.get('torch')} sees no NVIDIA GPU; run it where there is "
            "one, or try it out with: --device cpu --tiny"
        )
    os.environ |= chosen
    return facts
