"""Records of a one-GPU check, made by arithmetic from the committed plan: in the form that the check leaves them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.sound import load_planned, planned_bytes
from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import METHODS
from benchmarks.doctor.gpu.stretch import memory_cells

UUID = "GPU-5e5a1a3c-0000-0000-0000-000000000001"
GPU: dict[str, Any] = {"device": "NVIDIA H200", "device_memory_bytes": 150_000_000_000}
SOURCE = {"commit": "c0ffee0" + 33 * "0", "dirty": False, "date": "2026-01-02T03:04:05+00:00", "torch": "2.11.0"}
SOURCE |= {"cuda": "13.0", "driver": "580.1", "nccl": "2.28.9", "uuid": UUID, **GPU}
BASELINE, BUFFERS, WORKSPACES, ROUNDING, ACTIVATIONS, CONTEXT = 512, 4096, 33_554_432, 1024, 700 << 20, 500 << 20


def memory_of(cell: Cell) -> dict[str, Any]:
    """What a rank measured that holds what is planned."""
    planned, residuals = load_planned()[cell.model], planned_bytes(cell, "residuals_bytes")
    assert residuals is not None
    gradients = 0 if cell.gradients == "streamed" else planned.gradients_bytes
    states = {"parameters_bytes": planned.parameters_bytes, "gradients_bytes": gradients, "residuals_bytes": residuals}
    states["optimizer_states_bytes"] = planned.optimizer_states_bytes
    total = sum(states.values())
    rest = {"buffers_bytes": BUFFERS, "workspaces_bytes": WORKSPACES, "rounding_bytes": ROUNDING, "other_bytes": 0}
    parts = {"baseline_bytes": BASELINE, "states_bytes": total, **rest}
    allocated = sum(parts.values())
    peak = allocated + ACTIVATIONS
    read = {"model_state_itemised": total, "allocated": allocated, "peak_allocated": peak}
    read |= {"allocated_without_gradients": allocated - gradients, "nvml_process": peak + CONTEXT}
    ladder = [
        {"name": name, "method": METHODS[name], "bytes": value, "reason": None, "baseline_bytes": 0, "flags": []}
        for name, value in read.items()
    ]
    peaks = {"total_bytes": total, "in_flight_bytes": 1000, "peak_states_bytes": total + 1000}
    return {**states, **peaks, "ladder": ladder, "difference": {"allocated_bytes": allocated, **parts}}


def case_of(cell: Cell, number: int = 0) -> dict[str, Any]:
    """The record of a cell that finished; each `number` has other times."""
    seconds = [0.5 + number / 1000 + step / 7 for step in range(cell.steps or 0)]
    rank = {"status": "ok", "steps": cell.steps, "step_seconds": seconds, "memory": memory_of(cell)}
    rank |= {"steps_per_second": 2.0, "threads": 1, "facts": {**GPU, "gpu_uuid": UUID}}
    case = {"name": cell.name, "date": SOURCE["date"], "cell": cell.to_dict(), "status": "ok", "reason": None}
    case |= {"ranks": [rank] * cell.world_size, "planned": None, "agreement": []}
    return case | {"wall_seconds": 20.0, "device": UUID, "code": "abc", "commit": SOURCE["commit"], "tries": 1}


def memory_file(cells: Iterable[Cell] | None = None) -> dict[str, Any]:
    """memory.json of a GPU that holds what is planned: by default of all cells of the check."""
    cases = [case_of(cell, number) for number, cell in enumerate(memory_cells() if cells is None else cells)]
    return {"group": "memory", "provenance": dict(SOURCE), "cases": cases, "not_run": {}}


def known_file(error: float = 0.0) -> dict[str, Any]:
    """known.json: rungs that are wrong by this share."""
    size = 256 << 20
    names = ("model_state_itemised", "allocated", "peak_allocated", "nvml_process", "nvml_device", "resident")
    rungs = [
        {"rung": name, "expected_bytes": size, "measured_bytes": round(size * (1 + error)), "reason": None, "flags": []}
        for name in names
    ]
    case = {"name": "known.256-mib", "date": SOURCE["date"], "status": "ok", "reason": None, "result": rungs}
    case |= {"device": UUID, "code": "abc", "commit": SOURCE["commit"]}
    return {"group": "known", "provenance": dict(SOURCE), "cases": [case], "not_run": {}}


def save(folder: Path, *files: dict[str, Any], device: str = "nvidia-h200") -> Path:
    """Write files of groups where a device's lie below a folder, and return the latter."""
    (folder / device).mkdir(parents=True, exist_ok=True)
    for values in files:
        (folder / device / f"{values['group']}.json").write_text(json.dumps(values))
    return folder
