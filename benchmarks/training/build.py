"""Makes everything that a rank trains with from its cell: model, data and optimizer, the same on every rank."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import resireduce
from benchmarks.core import scheme_options
from benchmarks.core.cell import Cell
from benchmarks.core.prepared import open_prepared
from benchmarks.core.registry import MODELS, TASKS
from benchmarks.core.workloads import WORKLOADS, Schedule
from benchmarks.training.deadline import Watch
from benchmarks.training.measure.probe import Probe
from benchmarks.training.optimizers import make_optimizer
from benchmarks.training.place import nodes_of
from benchmarks.training.tasks.task import Setting, Task
from benchmarks.training.trainer import Trainer
from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.dgc import DGC
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, build_compressor, load


def build(
    cell: Cell,
    communicator: Communicator,
    weights: Path | None,
    root: Path,
    device: torch.device | None = None,
    probe: Probe | None = None,
    watch: Watch | None = None,
) -> Trainer:
    """Make one rank's trainer, and seed torch's own generator, which dropout draws from: each rank has its own masks.

    `weights` is the file of a state dict to start from, else those are random or named by the recipe; `root` has
    prepared data sets. Without `probe` only what every result has is measured; `watch` says when to save and to stop.
    """
    workload = cell.workload
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
    compressor = make_compressor(cell, schedule)
    optimizer = resireduce.distribute(
        model,
        make_optimizer(workload, model, COMPRESSORS[cell.compressor].corrects_momentum),
        scheme=cell.scheme,
        compressor=compressor,
        density=make_density(cell, schedule, compressor),
        backend=communicator,
        gradients=cell.gradients,
        update=cell.update,
        residual_dtype=cell.residual_dtype,
        options=scheme_options.thaw(cell.options),
        hierarchy=nodes_of(cell),
        merge=scheme_options.thaw_merge(cell.merge),
    )
    watch = watch or Watch()
    watch.join(communicator, cell.name, task)
    torch.manual_seed(rank_seed(cell.seed, communicator.rank))
    return Trainer(cell, schedule, task, model, optimizer, communicator, probe=probe or Probe(), watch=watch)


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of one rank's dropout, below 2^32: torch on CPUs uses no more bits."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])


def make_compressor(cell: Cell, schedule: Schedule) -> Compressor:
    """Make the cell's compressor; DGC gets the recipe's momentum if it forms it itself."""
    workload, compressor = schedule.workload, build_compressor(cell.compressor, cell.density)
    if isinstance(compressor, DGC) and compressor.momentum_factor:
        compressor = replace(compressor, momentum_factor=workload.momentum, nesterov=workload.nesterov)
    return compressor


def make_density(cell: Cell, schedule: Schedule, compressor: Compressor) -> float | Callable[[int], float]:
    """Return the cell's density or, of DGC with a recipe that warms it up, what it is in each step: never less."""
    stages = schedule.workload.density_warmup if isinstance(compressor, DGC) else ()

    def at(step: int) -> float:
        return max([cell.density, *stages[step // schedule.steps_per_epoch :][:1]])

    return at if stages else cell.density


def make_model(cell: Cell, weights: Path | None, root: Path) -> nn.Module:
    """Make the model with the cell's seed, and load the file `weights`, or prepared ones unless data are synthetic."""
    torch.manual_seed(cell.seed)
    model: nn.Module = load(MODELS[cell.model])()
    pretrained = WORKLOADS[cell.model].weights
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
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


def load_prepared(model: nn.Module, name: str, root: Path) -> None:
    """Overwrite the model's parameters with the prepared weights `name`, except those that they are known to lack.

    Raises ConfigError, one line, if tensors of the file differ from the model's in name or shape.
    """
    from safetensors import safe_open

    prepared = open_prepared(name, root)
    own = dict(model.named_parameters())
    with safe_open(prepared.folder / "model.safetensors", framework="pt") as file, torch.no_grad():
        found = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118  (no mapping)
        lacking = prepared.manifest.get("missing", ())
        wanted = {key: [*one.shape] for key, one in own.items() if key not in lacking}
        for key in sorted({*found, *wanted}):
            if found.get(key) != wanted.get(key):
                what = f"{key} is {found.get(key)}, in the model {wanted.get(key)}"
                raise ConfigError(f"weights: {name!r} does not fit: {what}; prepare them again, from that model")
        for key in found:
            own[key].copy_(file.get_tensor(key))
