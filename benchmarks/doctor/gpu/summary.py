"""What stretches of a one-GPU check have left, put where claims and docs/results.md read it. No torch."""

from collections.abc import Iterator, Sequence
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
from benchmarks.core.files import save_json
from benchmarks.core.provenance import provenance
from benchmarks.doctor.gpu.steps import GROUPS
from benchmarks.doctor.gpu.stretch import code_of, read_files
from resireduce.errors import ConfigError

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
        save_json({"memory": rows, "missing": _missing(groups), "provenance": sources, "notes": device.notes}, path)
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


def _missing(groups: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the steps that failed or were not run, each with its reason."""
    cases = [case for values in groups for case in values["cases"] if case["status"] != "ok"]
    not_run = {name: reason for values in groups for name, reason in values["not_run"].items()}
    return {case["name"]: f"{case['status']}: {case['reason']}" for case in cases} | not_run
