"""One rank that trains several cells of one model in turn, and times them.

`python -m benchmarks.training.pace_rank FOLDER ROUNDS STEPS [inputs]`; `benchmarks.micro.pace` starts it. With
inputs, the inputs of a simulated step are measured before each round.
"""

import gc
import os
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_json
from benchmarks.core.prepared import find_root
from benchmarks.core.progress import counted
from benchmarks.training.build import build
from benchmarks.training.inputs import Inputs
from benchmarks.training.place import Place, choose_place, settle_arithmetic
from benchmarks.training.trainer import Trainer
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError
from resireduce.merging.profile import TIMED_STEPS
from resireduce.merging.rules import TIMED

T = TypeVar("T")
WARM_UP_STEPS = 3
TIMED_WARM_UP_STEPS = WARM_UP_STEPS + 1 + TIMED_STEPS
"""Warm-up steps for rules that merge by the times of the first steps, so that these are over."""


def main() -> None:
    """Time the rounds; rank 0 writes their seconds, a list for each cell, to the folder's `seconds.json`.

    It also writes to `merged.json` how many messages each cell sends, and the costs by which a rule has merged them.
    With inputs, every rank writes its measurements to `inputs`, its number, `.json`.
    """
    folder, rounds, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    cells = [Cell.from_dict(values) for values in load_json(folder / "cells.json")]
    rank, world_size, place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), choose_place()
    _set_up(folder, cells[0].threads, place, rank, world_size)
    trainers = _built(cells, place.device, rank)
    inputs = Inputs(cells, meet) if "inputs" in sys.argv[4:] else None
    if inputs is not None:
        inputs.sample()
        inputs.rounds.clear()  # in the first sample, memory and threads are new
    seconds: list[list[float]] = [[] for _ in cells]
    for number in _told(rank, f"{cells[0].model}: rounds", range(rounds)):
        if inputs is not None:
            inputs.sample()
        order = range(len(cells))
        for which in order if number % 2 else reversed(order):
            seconds[which].append(_train(trainers[which], steps))
    if inputs is not None:
        save_json(inputs.rounds, folder / f"inputs{rank}.json")
    if rank == 0:
        save_json(seconds, folder / "seconds.json")
        save_json([_merged(trainer) for trainer in trainers], folder / "merged.json")
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def _set_up(folder: Path, threads: int, place: Place, rank: int, world_size: int) -> None:
    """Set threads and device, and have the ranks meet, at a file of the folder."""
    torch.set_num_threads(threads)
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
        settle_arithmetic(place.device)
    if world_size > 1:
        meeting = f"file://{folder}/store"
        dist.init_process_group(place.process_group, init_method=meeting, rank=rank, world_size=world_size)


def _built(cells: Sequence[Cell], device: torch.device, rank: int) -> list[Trainer]:
    """Build all cells, and train them until what the first steps set up is there."""
    trainers = []
    for cell in _told(rank, f"{cells[0].model}: settings prepared", cells):
        communicator = LocalCommunicator() if cell.backend == "local" else TorchCommunicator()
        trainer = build(cell, communicator, None, find_root(), device)
        _train(trainer, TIMED_WARM_UP_STEPS if cell.merge in TIMED else WARM_UP_STEPS)
        trainers.append(trainer)
    gc.collect()
    gc.freeze()  # to go through all that imports have made takes longer than a round, and would fall on any cell
    return trainers


def _told(rank: int, what: str, items: Sequence[T]) -> Iterable[T]:
    """Return the items; rank 0 tells how many are done, if it takes long."""
    return counted(what, items, len(items)) if rank == 0 else items


def _merged(trainer: Trainer) -> dict[str, Any]:
    """Return how many messages are sent in a step, and the measured costs, if there are any."""
    messages, costs = trainer.optimizer.messages, trainer.optimizer.costs
    return {"messages": len(messages), "costs": None if costs is None else vars(costs)}


def _train(trainer: Trainer, steps: int) -> float:
    """Return the seconds of `steps` steps, from when all ranks are ready to when all are done."""
    trainer.model.train()
    meet()
    started = time.perf_counter()
    for step, indices in enumerate(islice(trainer.indices(), steps)):
        trainer.train_step(step, trainer.batch(indices, step))
    meet()
    return time.perf_counter() - started


def meet() -> None:
    """Wait for this rank's device, and for the other ranks."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"rank {os.environ['RANK']}: {error}")
