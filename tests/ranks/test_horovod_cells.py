"""Cells whose ranks reach each other over Horovod: as over torch.distributed, bit for bit."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json
from benchmarks.core.stop_policy import Limits
from benchmarks.training import deadline
from benchmarks.training.horovod import horovod_facts
from benchmarks.training.place import choose_place
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
    # Of another launcher around the suite's, which counts for nothing.
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOROVOD_RANK": "0", "HOROVOD_FUSION_THRESHOLD": str(2**20)}
    dist.destroy_process_group()
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
    dist.barrier()
    disconnect(replace(CELLS[0], backend="horovod"))


@NEEDED
def test_a_cell_is_the_same_over_either_backend_also_when_stopped(tmp_path: Path) -> None:
    on_processes(2, partial(check_cells, tmp_path))


@NEEDED
def test_ranks_that_horovodrun_has_started_need_no_meeting(tmp_path: Path) -> None:
    cell, limits = tmp_path / "cell.json", tmp_path / "limits.json"
    save_json(Cell(model="vgg-digits", scheme="w", backend="horovod", world_size=3).to_dict(), cell)
    save_json(Limits().to_dict(), limits)
    command = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2"]
    command += [sys.executable, "-m", "benchmarks.training.rank", "--cell", cell, "--limits", limits, "--data", "data"]
    command += ["--rendezvous", tmp_path, "--output", tmp_path / "rank{rank}.json"]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for rank in range(2):
        outcome = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert outcome["reason"] == "world_size: 3 is not the 2 ranks that Horovod has found; start as many"
    assert not list(tmp_path.glob("horovod*.json"))
