"""One of the ranks that test_horovod_cells starts: the same cells over Horovod and over torch.distributed."""

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.cell import Cell
from benchmarks.training.devices import choose_place
from benchmarks.training.horovod import horovod_facts
from benchmarks.training.rank import connect, disconnect, run_rank
from resireduce.comm.base import Communicator
from tests.dist.test_interrupted_cells import check_that_stops_change_nothing

STATES = ("parameters_bytes", "gradients_bytes", "residuals_bytes", "optimizer_states_bytes", "total_bytes")
CELLS = (
    {"scheme": "w+2d", "gradients": "streamed"},
    {"scheme": "baseline", "gradients": "kept"},
)


def trained(cell: Cell, communicator: Communicator) -> dict[str, Any]:
    """What must be the same over either backend."""
    outcome = run_rank(cell, communicator, None, Path("data"))
    assert outcome["status"] == "ok", outcome["reason"]
    found = {name: outcome[name] for name in ("metrics", "metric_history", "steps", "data_hash", "baseline_bytes")}
    return found | {name: outcome["memory"][name] for name in STATES}


def main(folder: Path) -> None:
    """Join both jobs in one process, by the code that a cell's rank joins them by."""
    place, cells = choose_place(), {name: Cell(model="resnet-digits", backend=name) for name in ("horovod", "torch")}
    over = {name: connect(cell, folder / "rendezvous", place) for name, cell in cells.items()}
    assert {(it.rank, it.world_size) for it in over.values()} == {(dist.get_rank(), 2)}
    for values in CELLS:
        made = (Cell(model="resnet-digits", steps=4, backend=name, **values) for name in over)
        first, second = (trained(cell, over[cell.backend]) for cell in made)
        assert first == second, values
    check_that_stops_change_nothing(folder / "checkpoints", over["horovod"])
    facts = horovod_facts()
    assert facts["controller"] == "gloo" and facts["gloo_built"] and facts["fusion_threshold_bytes"] == 2**20
    for cell in cells.values():
        disconnect(cell)
    print("passed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
