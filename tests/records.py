"""Records as a run leaves them, made by arithmetic: what report and workflow are tested with."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult

METRICS = {
    "resnet-digits": ("accuracy", True, 0.97),
    "vgg-digits": ("accuracy", True, 0.98),
    "gpt2-bytes": ("perplexity", False, 4.2),
    "bert-questions": ("f1", True, 0.81),
}
OPTIMIZER_COPIES = {"resnet-digits": 1, "vgg-digits": 1, "gpt2-bytes": 2, "bert-questions": 2}
PARAMETERS_BYTES = {
    "resnet-digits": 1_200_000,
    "vgg-digits": 8_400_000,
    "gpt2-bytes": 5_000_000,
    "bert-questions": 4_400_000,
}
RESIDUAL_SHARE = {"baseline": 1.0, "none": 0.0, "w": 0.6, "2d": 0.7, "w+2d": 0.3}
RESIDUAL_SHARE |= {"a": 0.6, "member": 0.6, "d": 0.7, "partial": 0.5, "decayed": 1.0}


def make_states(cell: Cell) -> dict[str, int]:
    """The bytes of a cell, from shares of its model's parameters."""
    parameters = PARAMETERS_BYTES[cell.model]
    states = {
        "parameters_bytes": parameters,
        "gradients_bytes": parameters if cell.gradients == "kept" else 0,
        "residuals_bytes": 0 if cell.compressor == "none" else int(parameters * RESIDUAL_SHARE[cell.scheme]),
        "optimizer_states_bytes": parameters * OPTIMIZER_COPIES[cell.model],
    }
    in_flight = parameters // 3 if cell.gradients == "streamed" else parameters // 50
    total = sum(states.values())
    peak = {"in_flight_bytes": in_flight, "peak_states_bytes": total + in_flight, "peak_resident_bytes": total * 3}
    return {**states, "total_bytes": total, **peak}


def path_of(folder: Path, cell: Cell) -> Path:
    """Where a run's folder has the record of a cell."""
    return folder / "cells" / f"{cell.name}.json"


def make_result(cell: Cell) -> CellResult:
    """An ok record; without residuals the metric is a little worse."""
    name, higher, metric = METRICS[cell.model]
    metric *= 1 + (0.01 * cell.seed + 0.05 * (cell.scheme == "none")) * (-1 if higher else 1)
    states = make_states(cell)
    return CellResult(
        cell=cell,
        status="ok",
        metric_name=name,
        higher_is_better=higher,
        metric=metric,
        metric_history=[[100, metric * 0.9], [200, metric]],
        steps=200,
        steps_per_second=20.0 if cell.scheme == "baseline" else 21.5,
        step_seconds=[0.05] * 5,
        units_per_second=640.0 if cell.scheme == "baseline" else 688.0,
        unit="tokens" if OPTIMIZER_COPIES[cell.model] == 2 else "images",
        phase_seconds={"forward_backward": 0.03, "compress": 0.015, "communicate": 0.005, "step": 0.05},
        ladder=[
            {"name": "model_state_itemised", "method": "sum over tensors", "bytes": states["total_bytes"]},
            {"name": "nvml_device", "method": "NVML", "bytes": None, "reason": "no CUDA device", "flags": []},
        ],
        wall_seconds=12.5,
        per_rank=[{"rank": rank, **states} for rank in range(cell.world_size)],
        provenance={
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "dirty": False,
            "python": "3.11.9",
            "packages": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
            "cpu": "Example CPU @ 2.00GHz",
            "threads": 1,
            "data_hash": "ab" * 32,
            "date": f"2026-01-0{1 + cell.seed}T12:00:00+00:00",
        },
        **states,
    )


def save_run(folder: Path, config: Mapping[str, Any], make: Callable[[Cell], CellResult] = make_result) -> Path:
    """A run of `config`: the records that are made of its cells."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for cell in expand({key: value for key, value in config.items() if key != "run"}):
        make(cell).save(path_of(folder, cell))
    return folder
