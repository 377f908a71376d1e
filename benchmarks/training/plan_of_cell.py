"""Runs `plan` for a cell, with its recipe's own optimizer."""

from torch import nn
from torch.optim import Optimizer

from benchmarks.core import merge_option
from benchmarks.core.cell import Cell
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.optimizers import make_optimizer
from resireduce.merging.rules import TIMED
from resireduce.plan import plan
from resireduce.scheme import load


def plan_of(cell: Cell) -> dict[str, int | float]:
    """Return the result of `plan` for a cell, with its recipe's own optimizer.

    The optimizers that `plan` knows have a step counter for each parameter, which not all have, and temporaries, which
    fused forms have not. The largest models take a few seconds.
    """

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        return make_optimizer(WORKLOADS[cell.model], nn.ParameterList(parameters))

    found = plan(
        load(MODELS[cell.model]),
        optimizer=make,
        scheme=cell.scheme,
        gradients=cell.gradients,
        residual_dtype=cell.residual_dtype,
        compressor=cell.compressor,
        density=cell.density,
        world_size=cell.world_size,
        update=cell.update,
        hierarchy=cell.hierarchy,
        ranks_per_node=_ranks_per_node(cell),
        merge="none" if cell.merge in TIMED else merge_option.thaw(cell.merge),  # not merged before being timed
    )
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def _ranks_per_node(cell: Cell) -> int | None:
    """Return how many ranks share a node; if the cell does not name machines, all ranks share one."""
    on_each = cell.ranks_per_node or cell.world_size // (cell.nodes or 1)
    return on_each if cell.hierarchy == "node" else None
