"""Runs for `python -m benchmarks check`, measured well by arithmetic, and changes of their records."""

import json
from zlib import crc32

from benchmarks.analysis.load_run import STRETCHES
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from benchmarks.core.sample_counts import planned_steps
from benchmarks.core.workloads import WORKLOADS
from tests.records import make_result, path_of, save_run

CONFIG = {
    "run": "x",
    "defaults": {"density": 0.01},
    "matrix": [
        {"model": ["vgg-digits", "gpt2-bytes"], "scheme": ["baseline", "w+2d"], "gradients": ["kept", "streamed"]},
        {"model": "vgg-digits", "scheme": "none", "seed": [0, 1]},
    ],
}
ANSWERS = 449
"""Held-out answers of the digits, of which the accuracy is a whole number."""
VGG = Cell(model="vgg-digits", scheme="w+2d")
LABEL = "w+2d, kept on vgg-digits"
MEASURED = {
    "commit": "0" * 40,
    "dirty": False,
    "python": "3.11.9",
    "packages": {"torch": "2.13.0+cpu"},
    "cpu": "Example CPU",
    "device": "cpu",
    "ranks_per_host": {"node": 2},
    "data_hash": "0" * 64,
    "threads": 1,
    "date": "2026-01-02T03:04:05+00:00",
}


def sound(record):
    """The record with all that follows from its bytes, steps, speed and metric, as a training leaves it."""
    cell, speed = Cell.from_dict(record["cell"]), record["steps_per_second"]
    steps = planned_steps(cell)[0]
    if record["metric_name"] == "accuracy":
        share = record["metric"] if record["metric"] <= 1 else record["metric"] / 100
        record["metric"] = round(share * ANSWERS) * 100 / ANSWERS
    every = WORKLOADS[cell.model].evaluate_every
    evaluated = [*range(every, steps, every), steps]
    record["total_bytes"] = sum(record[name] for name in STATE_FIELDS)
    record["in_flight_bytes"] = max(record["peak_states_bytes"] - record["total_bytes"], 0)
    record["peak_states_bytes"] = record["total_bytes"] + record["in_flight_bytes"]
    held = {name: record[name] for name in BYTE_FIELDS}
    own = 1e-5 * (1 + crc32(cell.name.encode()) % 499)  # no two trainings take the same seconds
    seconds = [(1 + own * (-1) ** one) / speed for one in range(steps if steps < 2 * STRETCHES else STRETCHES)]
    phases = {"forward_backward": (0.9 - own) / speed, "update": (0.1 + own) / speed, "step": 1 / speed}
    source = record["provenance"]
    if isinstance(source, dict):
        if source.get("device") not in (None, "cpu"):
            gpus = {"cuda": "12.6", "device_memory_bytes": 2**36, "gpu_uuids": ["GPU-0", "GPU-1"]}
            source = {**source, **gpus, "packages": {"torch": "2.13.0"}}
        record["provenance"] = {"backend": cell.backend, "content": {"cell": cell.to_dict()}, **source}
    return record | {
        "metrics": {record["metric_name"]: record["metric"]},
        "phase_seconds": phases,
        "steps": steps,
        "metric_history": [[step, record["metric"]] for step in evaluated],
        "step_seconds": seconds,
        "wall_seconds": 1.1 * steps / speed,
        "units_per_second": 32 * speed,
        "per_rank": [
            {"rank": rank, "phase_seconds": {**phases, "data": 1e-6 * rank}, **held} for rank in range(cell.world_size)
        ],
        "ladder": [{"name": "model_state_itemised", "method": "sum", "bytes": record["total_bytes"]}],
    }


def change(folder, cell=VGG, **values):
    """Replace fields of a cell's record, and all that follows from them."""
    path = path_of(folder, cell)
    record = json.loads(path.read_text())
    if "residuals_bytes" in values:
        values["peak_states_bytes"] = (
            record["peak_states_bytes"] + values["residuals_bytes"] - record["residuals_bytes"]
        )
    path.write_text(json.dumps(sound(record | values)))


def make(folder, config):
    """A run of this config, measured well."""

    def measured(cell):
        return CellResult.from_dict(sound(make_result(cell).to_dict() | {"provenance": MEASURED}))

    return save_run(folder, config, measured)


def change_all(folder, **values):
    for cell in expand({key: CONFIG[key] for key in ("defaults", "matrix")}):
        change(folder, cell, **values)


def residuals(folder, cell=VGG):
    return json.loads(path_of(folder, cell).read_text())["residuals_bytes"]
