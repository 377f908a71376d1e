"""Whether a case held the bytes that `python -m resireduce plan` says, and whether the allocator agrees."""

from typing import TYPE_CHECKING, Any

from benchmarks.cell import Cell
from benchmarks.models import MODELS
from benchmarks.workloads import WORKLOADS

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

STATES = ("parameters", "gradients", "residuals", "optimizer_states", "total")
"""Must be as planned, to the byte."""
ALLOCATED = "allocated"
"""The rung of the ladder that is read at a step boundary, gradients included."""
ALLOCATED_TOLERANCE = 0.01
PEAK_TOLERANCE = 0.05


def plan_of(cell: Cell, on_gpu: bool = False) -> dict[str, int | float]:
    """Return what `plan` says of a cell, with its recipe's own optimizer.

    That of `plan` counts a step for each parameter, which not all of them do. `on_gpu`: without temporaries of an
    optimizer that has a fused form. Loads torch; takes a few seconds for the largest models.
    """
    from torch import nn

    from benchmarks.training.optimizers import make_optimizer
    from resireduce.plan import plan
    from resireduce.scheme import load

    def make(parameters: list[nn.Parameter]) -> "Optimizer":
        optimizer = make_optimizer(WORKLOADS[cell.model], nn.ParameterList(parameters))
        return _as_fused(optimizer) if on_gpu and "fused" in optimizer.defaults else optimizer

    return plan(
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
    )


def _as_fused(optimizer: "Optimizer") -> "Optimizer":
    """Have a step do nothing once it has made the states: the fused form, which tensors without storage do not have."""

    class Fused(type(optimizer)):  # type: ignore[misc]
        step_is_separable = True

        def step(self) -> None:
            parameters: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
            if any(parameter.grad is not None and not self.state.get(parameter) for parameter in parameters):
                super().step()

    optimizer.__class__ = Fused
    return optimizer


def compare(outcome: dict[str, Any], planned: dict[str, int | float]) -> dict[str, Any]:
    """Return what agrees in one rank's outcome: by name, measured, expected, ratio and whether that is near enough.

    `states`: each as planned, to the byte. `peak_states`: at the fullest moment of a step. `allocated`: what the
    allocator has given out at a step boundary since before the model was built, of what the tensors add up to that are
    known to lie there: the model states on the device, the model's buffers, cuBLAS's workspaces. Missing without a GPU.
    """
    memory = outcome["memory"]
    states = {name: _compared(memory[f"{name}_bytes"], planned[name], 0.0) for name in STATES}
    peak = _compared(memory["peak_states_bytes"], planned["peak_states"], PEAK_TOLERANCE)
    found: dict[str, Any] = {"states": states, "peak_states": peak}
    allocated, known = rung_bytes(memory, ALLOCATED), memory.get("difference")
    if allocated is not None and known:
        expected = known["states_bytes"] + known["buffers_bytes"] + known["workspaces_bytes"]
        found["allocated"] = _compared(allocated - known["baseline_bytes"], expected, ALLOCATED_TOLERANCE)
    return found | {"agrees": all(one["agrees"] for one in _leaves(found))}


def rung_bytes(memory: dict[str, Any], name: str) -> int | None:
    """Return the bytes of one rung of a rank's ladder; None where it is missing."""
    rungs = (rung for rung in memory.get("ladder") or () if rung.get("name") == name)
    return next((rung.get("bytes") for rung in rungs), None)


def _compared(measured: float, expected: float, tolerance: float) -> dict[str, Any]:
    ratio = measured / expected if expected else None
    agrees = measured == expected or (ratio is not None and abs(ratio - 1) <= tolerance)
    return {"measured": measured, "expected": expected, "ratio": ratio, "agrees": agrees}


def _leaves(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found["states"].values(), *(one for name, one in found.items() if name != "states")]
