"""Runs `plan` for a cell, with its recipe's own optimizer."""

from torch import nn
from torch.optim import Optimizer

from benchmarks.core import merge_option
from benchmarks.core.cell import Cell
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.optimizers import make_optimizer
from resireduce.merging.costs import TIMED
from resireduce.plan import plan
from resireduce.scheme import load


def plan_of(cell: Cell, on_gpu: bool = False) -> dict[str, int | float]:
    """Return the result of `plan` for a cell, with its recipe's own optimizer.

    The optimizers that `plan` knows have a step counter for each parameter, which not all have. `on_gpu`: leave out the
    temporaries of an optimizer with a fused form, except with slices. The largest models take a few seconds.
    """

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        optimizer = make_optimizer(WORKLOADS[cell.model], nn.ParameterList(parameters))
        fused = on_gpu and cell.slices is None and "fused" in optimizer.defaults
        return _as_fused(optimizer) if fused else optimizer

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
        overlap=True,
        hierarchy=cell.hierarchy,
        ranks_per_node=_ranks_per_node(cell),
        merge="none" if cell.merge in TIMED else merge_option.thaw(cell.merge),  # not merged before being timed
        slices=cell.slices,
    )
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def _ranks_per_node(cell: Cell) -> int | None:
    """Return how many ranks share a node; if the cell does not name machines, all ranks share one."""
    on_each = cell.ranks_per_node or cell.world_size // (cell.nodes or 1)
    return on_each if cell.hierarchy == "node" else None


def _as_fused(optimizer: Optimizer) -> Optimizer:
    """Imitate the fused form, which tensors without storage lack: a step only makes the states, then does nothing."""

    class Fused(type(optimizer)):  # type: ignore[misc]
        step_is_separable = True

        def step(self) -> None:
            parameters: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
            if any(parameter.grad is not None and not self.state.get(parameter) for parameter in parameters):
                super().step()

    optimizer.__class__ = Fused
    return optimizer
