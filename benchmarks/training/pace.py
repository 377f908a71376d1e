"""One rank that trains the same cell with kept and with streamed gradients in turn, and times both.

`python -m benchmarks.training.pace FOLDER ROUNDS STEPS`; `benchmarks.pace` starts it.
"""

import os
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.cell import Cell
from benchmarks.data.prepared import find_root
from benchmarks.files import load_json, save_json
from benchmarks.training.build import build
from benchmarks.training.trainer import Trainer
from resireduce.comm.torch import TorchCommunicator

WARM_UP_STEPS = 3


def main() -> None:
    """Time the rounds; rank 0 leaves their seconds, kept and streamed, in the folder's `seconds.json`."""
    folder, rounds, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cell = Cell.from_dict(load_json(folder / "cell.json"))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(cell.threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    trainers = [_trainer(replace(cell, gradients=gradients)) for gradients in ("kept", "streamed")]
    seconds: list[list[float]] = [[], []]
    for trainer in trainers:
        _train(trainer, WARM_UP_STEPS)
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            seconds[which].append(_train(trainers[which], steps))
    if rank == 0:
        save_json(seconds, folder / "seconds.json")
    dist.barrier()
    dist.destroy_process_group()


def _trainer(cell: Cell) -> Trainer:
    return build(cell, TorchCommunicator(), None, find_root())


def _train(trainer: Trainer, steps: int) -> float:
    """Seconds that so many steps take, from when all ranks are there to when all are done."""
    trainer.model.train()
    dist.barrier()
    started = time.perf_counter()
    for step, indices in enumerate(islice(trainer.indices(), steps)):
        trainer.train_step(step, trainer.batch(indices, step))
    dist.barrier()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
