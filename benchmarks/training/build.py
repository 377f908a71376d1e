"""Everything that a rank trains with, from its cell: model, data, optimizer, the same on every rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import resireduce
from benchmarks.cell import Cell
from benchmarks.models import MODELS
from benchmarks.options import thaw
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Setting, Task
from benchmarks.training.optimizers import make_optimizer
from benchmarks.training.trainer import Trainer
from benchmarks.training.weights import load_given, load_prepared
from benchmarks.workloads import WORKLOADS, Schedule
from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.dgc import DGC
from resireduce.scheme import COMPRESSORS, build_compressor, load


def build(
    cell: Cell, communicator: Communicator, weights: Path | None, root: Path, device: torch.device | None = None
) -> Trainer:
    """Make one rank's trainer, and seed torch's own generator, which dropout draws from: each rank has its own masks.

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
    model = make_model(cell, weights, root).to(device or torch.device("cpu"))
    optimizer = resireduce.distribute(
        model,
        make_optimizer(workload, model, COMPRESSORS[cell.compressor].corrects_momentum),
        scheme=cell.scheme,
        compressor=make_compressor(cell, schedule),
        backend=communicator,
        gradients=cell.gradients,
        overlap=True,
        update=cell.update,
        residual_dtype=cell.residual_dtype,
        options=thaw(cell.options),
    )
    torch.manual_seed(rank_seed(cell.seed, communicator.rank))
    return Trainer(cell, schedule, task, model, optimizer, communicator)


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of one rank's dropout, below 2^32: torch on CPUs uses no more bits."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])


def make_compressor(cell: Cell, schedule: Schedule) -> Compressor:
    """Make the cell's compressor; DGC's has the recipe's density warm-up, and its momentum where it forms it itself."""
    workload, compressor = schedule.workload, build_compressor(cell.compressor, cell.density)
    if isinstance(compressor, DGC) and compressor.momentum_factor:
        compressor = replace(compressor, momentum_factor=workload.momentum, nesterov=workload.nesterov)
    if isinstance(compressor, DGC) and workload.density_warmup:
        densities = tuple(max(density, cell.density) for density in workload.density_warmup)
        compressor = replace(compressor, warmup=densities, warmup_steps=schedule.steps_per_epoch)
    return compressor


def make_model(cell: Cell, weights: Path | None, root: Path) -> nn.Module:
    """Make the model with the cell's seed, and load what it starts from into it, unless the data are synthetic.

    That is the state dict in the file `weights`, or else the prepared weights that the recipe names.
    """
    torch.manual_seed(cell.seed)
    model: nn.Module = load(MODELS[cell.model])()
    pretrained = WORKLOADS[cell.model].weights
    if weights is not None:
        load_given(model, weights)
    elif pretrained and cell.data == "real":
        load_prepared(model, pretrained, root)
    return model


def make_task(cell: Cell, root: Path) -> Task:
    """Load the cell's data."""
    workload = WORKLOADS[cell.model]
    setting = Setting(
        data=cell.data_name,
        root=root,
        synthetic=cell.data == "synthetic",
        length=cell.length or workload.length,
        seed=cell.seed,
        released=frozenset(cell.released),
    )
    return load(TASKS[workload.task])(setting)
