"""One rank that trains several cells of one model in turn, and times them, for `benchmarks.micro.train_on_nodes`."""

import gc
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.core.cell import Cell
from benchmarks.core.prepared import find_root
from benchmarks.core.progress import counted
from benchmarks.training.build import build
from benchmarks.training.inputs import Inputs
from benchmarks.training.measure_rank import in_turn, join, meet
from benchmarks.training.place import choose_place, settle_arithmetic
from benchmarks.training.trainer import Trainer
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.merging.profile import TIMED_STEPS
from resireduce.merging.rules import TIMED

T = TypeVar("T")
WARM_UP_STEPS = 3
TIMED_WARM_UP_STEPS = WARM_UP_STEPS + 1 + TIMED_STEPS
"""Warm-up steps for rules that merge by the times of the first steps, so that these are over."""


def measured(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Time the rounds; return their seconds, a list for each cell.

    `merged` has how many messages each cell sends, and the costs by which a rule has merged them; `inputs`, if the
    settings ask for them, this rank's samples of the inputs of a simulated step, one before each round.
    """
    cells = [Cell.from_dict(values) for values in settings["cells"]]
    rank, place = int(os.environ["RANK"]), choose_place()
    torch.set_num_threads(cells[0].threads)
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
        settle_arithmetic(place.device)
    if cells[0].world_size > 1:
        join(folder, place.process_group)
    trainers = _built(cells, place.device, rank)
    inputs = Inputs(cells, meet) if settings["inputs"] else None
    if inputs is not None:
        inputs.sample()
        inputs.rounds.clear()  # in the first sample, memory and threads are new

    def rounds() -> Iterator[int]:
        for number in _told(rank, f"{cells[0].model}: rounds", range(settings["rounds"])):
            if inputs is not None:
                inputs.sample()
            yield number

    seconds = in_turn([partial(_train, trainer, settings["steps"]) for trainer in trainers], rounds())
    merged = []
    for trainer in trainers:
        messages, costs = trainer.optimizer.messages, trainer.optimizer.costs
        merged.append({"messages": len(messages), "costs": None if costs is None else vars(costs)})
    return {"seconds": seconds, "merged": merged, "inputs": None if inputs is None else inputs.rounds}


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


def _train(trainer: Trainer, steps: int, number: int = 0) -> float:
    """Return the seconds of `steps` steps, from when all ranks are ready to when all are done, in any round."""
    trainer.model.train()
    meet()
    started = time.perf_counter()
    for step, indices in enumerate(islice(trainer.indices(), steps)):
        trainer.train_step(step, trainer.batch(indices, step))
    meet()
    return time.perf_counter() - started
