"""Everything that a rank trains with, from its cell: model, data, optimizer, the same on every rank."""

from pathlib import Path

import torch
from torch import nn

import resireduce
from benchmarks.cell import Cell
from benchmarks.models import MODELS
from benchmarks.optimizers import make_optimizer
from benchmarks.options import thaw
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Setting, Task
from benchmarks.trainer import Trainer
from benchmarks.workloads import WORKLOADS, Schedule
from resireduce.comm.base import Communicator
from resireduce.scheme import COMPRESSORS, load


def build(
    cell: Cell, communicator: Communicator, weights: Path | None, root: Path, device: torch.device | None = None
) -> Trainer:
    """Make one rank's trainer.

    Args:
        cell: what to train.
        communicator: the ranks.
        weights: file of a state dict to start from; None: random ones, or those that the recipe names.
        root: folder of prepared data sets.
        device: where to train; None is the CPU.
    """
    workload = WORKLOADS[cell.model]
    task = make_task(cell, root)
    schedule = Schedule(
        workload,
        samples=len(task),
        world_size=communicator.world_size,
        steps_wanted=cell.steps,
        batch_wanted=cell.batch_per_rank,
        plans_single_rank="long-warmup" in cell.released,
    )
    model = make_model(cell, weights).to(device or torch.device("cpu"))
    compressor = COMPRESSORS[cell.compressor]
    optimizer = resireduce.distribute(
        model,
        make_optimizer(workload, model, compressor.corrects_momentum),
        scheme=cell.scheme,
        compressor=cell.compressor,
        density=cell.density,
        backend=communicator,
        gradients=cell.gradients,
        residual_dtype=cell.residual_dtype,
        options=thaw(cell.options),
    )
    return Trainer(cell, schedule, task, model, optimizer, communicator)


def make_model(cell: Cell, weights: Path | None) -> nn.Module:
    """Make the model with the cell's seed, and load the state dict in the file `weights` into it."""
    torch.manual_seed(cell.seed)
    model: nn.Module = load(MODELS[cell.model])()
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    return model


def make_task(cell: Cell, root: Path) -> Task:
    """Load the cell's data."""
    workload = WORKLOADS[cell.model]
    setting = Setting(
        data="wikitext-2" if "wikitext-2" in cell.released else workload.data,
        root=root,
        synthetic=cell.data == "synthetic",
        length=cell.length or workload.length,
        seed=cell.seed,
        released=frozenset(cell.released),
    )
    return load(TASKS[workload.task])(setting)
