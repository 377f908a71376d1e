"""One of the ranks that test_horovod_cells starts: the same cells over torch.distributed and over Horovod."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.core.cell import Cell
from benchmarks.training import deadline
from benchmarks.training.horovod import horovod_facts
from benchmarks.training.place import choose_place
from benchmarks.training.rank import connect, disconnect
from benchmarks.training.trainer import Trainer
from resireduce.planning.memory import measure_states
from tests.ranks.test_interrupted_cells import train

CELLS = (
    Cell(model="resnet-digits", scheme="w+2d", gradients="streamed", steps=5),
    Cell(model="resnet-digits", scheme="baseline", gradients="kept", steps=5),
)
STOPS = (2,)


def check_same(first: Trainer, second: Trainer) -> None:
    """Metrics, parameters, residuals and optimizer states, bit for bit, and their bytes."""
    assert first.history == second.history and len(first.history) == 2
    assert first.metrics == second.metrics
    for one, other in (
        (first.model.state_dict(), second.model.state_dict()),
        (first.optimizer.residual_state_dict(), second.optimizer.residual_state_dict()),
    ):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert measure_states(first.optimizer) == measure_states(second.optimizer)


def main(folder: Path) -> None:
    """Join both jobs in one process, by the code that a cell's rank joins them by; over Horovod with a stop."""
    torch.set_num_threads(1)
    deadline.LOOK_SECONDS = 0.0  # before every step
    place, backends = choose_place(), ("torch", "horovod")
    over = {it: connect(replace(CELLS[0], backend=it), folder, place) for it in backends}
    assert {(it.rank, it.world_size) for it in over.values()} == {(dist.get_rank(), 2)}
    for number, cell in enumerate(CELLS):
        whole = train(replace(cell, backend="torch"), over["torch"], folder / f"whole{number}", ())
        stopped = train(replace(cell, backend="horovod"), over["horovod"], folder / f"stopped{number}", STOPS)
        assert stopped.watch.resumed_at == [stop + 1 for stop in STOPS]
        check_same(whole, stopped)
    facts = horovod_facts()
    assert facts["controller"] == "gloo" and facts["gloo_built"] and facts["fusion_threshold_bytes"] == 2**20
    for backend in backends:
        disconnect(replace(CELLS[0], backend=backend))
    print("passed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
