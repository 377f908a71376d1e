"""Cells whose ranks reach each other over Horovod: as over torch.distributed, bit for bit."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.core.cell import Cell
from benchmarks.training import deadline
from benchmarks.training.place import choose_place, horovod_facts
from benchmarks.training.rank import connect, disconnect
from benchmarks.training.trainer import Trainer
from resireduce.comm.base import Communicator
from resireduce.planning.memory import measure_states
from tests.processes import on_processes
from tests.ranks.test_horovod import NEEDED
from tests.ranks.test_interrupted_cells import train

ROOT = Path(__file__).parents[2]
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


def check_cells(folder: Path, communicator: Communicator) -> None:
    """Join both jobs in one process, by the code that a cell's rank joins them by; over Horovod with a stop."""
    rank = str(communicator.rank)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOROVOD_FUSION_THRESHOLD": str(2**20)}
    deadline.LOOK_SECONDS = 0.0  # before every step
    place, backends = choose_place(), ("torch", "horovod")
    if communicator.rank == 0:
        for it in backends:
            (folder / it).mkdir()
    communicator.all_reduce(torch.zeros(1), "made").wait()
    dist.destroy_process_group()
    over = {it: connect(replace(CELLS[0], backend=it), folder / it, place) for it in backends}
    assert {(it.rank, it.world_size) for it in over.values()} == {(dist.get_rank(), 2)}
    for number, cell in enumerate(CELLS):
        whole = train(replace(cell, backend="torch"), over["torch"], folder / f"whole{number}", ())
        stopped = train(replace(cell, backend="horovod"), over["horovod"], folder / f"stopped{number}", STOPS)
        assert stopped.watch.resumed_at == [stop + 1 for stop in STOPS]
        check_same(whole, stopped)
    facts = horovod_facts()
    assert facts["controller"] == "gloo" and facts["gloo_built"] and facts["fusion_threshold_bytes"] == 2**20
    dist.barrier()
    disconnect(replace(CELLS[0], backend="horovod"))


@NEEDED
def test_a_cell_is_the_same_over_either_backend_also_when_stopped(tmp_path: Path) -> None:
    on_processes(2, partial(check_cells, tmp_path))
