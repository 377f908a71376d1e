"""The bytes that a training step will need, found by running the real code on tensors without storage."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from resireduce.api import distribute
from resireduce.comm.local import PretendCommunicator
from resireduce.errors import ConfigError, choose
from resireduce.memory import measure_states, track_states
from resireduce.optimizer import DistributedOptimizer

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


def plan(
    build: Callable[[], nn.Module],
    *,
    optimizer: str = "sgd",
    scheme: str = "w+2d",
    gradients: str = "streamed",
    residual_dtype: str | None = None,
    compressor: str = "topk",
    density: float = 0.01,
    world_size: int = 8,
) -> dict[str, int | float]:
    """Model states of one rank, in bytes.

    Args:
        build: returns the model; it is called under the meta device, so no memory is taken.
        optimizer: sgd (with momentum) or adamw.
        world_size: number of ranks, each of which sends as much as this one.
        scheme, gradients, residual_dtype, compressor, density: as in `resireduce.distribute`.

    Returns:
        parameters, gradients, residuals, optimizer_states and their sum total, at a step boundary; streamed gradients
        are gone by then. baseline_total: the same with kept gradients and a full residual in the gradient's dtype.
        normalised: total / baseline_total. peak_states: at the fullest moment of a step, activations not counted.
        in_flight: peak_states - total. peak_normalised: peak_states / baseline_total.
    """
    make = OPTIMIZERS[choose("optimizer", optimizer, OPTIMIZERS)]
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ConfigError(f"world_size: {world_size!r} is not allowed; give the number of ranks, 1 or more")
    shared = {"compressor": compressor, "density": density}
    result = _run(build, make, world_size, scheme=scheme, gradients=gradients, residual_dtype=residual_dtype, **shared)
    baseline = _run(build, make, world_size, scheme="baseline", gradients="kept", compressor="topk", density=density)
    result["baseline_total"] = baseline["total"]
    return result | {
        "normalised": result["total"] / baseline["total"],
        "in_flight": result["peak_states"] - result["total"],
        "peak_normalised": result["peak_states"] / baseline["total"],
    }


def _run(
    build: Callable[[], nn.Module],
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    world_size: int,
    **options: object,
) -> dict[str, int | float]:
    """Two steps: the first makes the optimizer's states, the second is watched."""
    with torch.device("meta"):
        model = build()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ConfigError(f"model: {type(model).__name__} has no trainable parameter; give one that trains")
    optimizer = distribute(model, make(trainable), backend=PretendCommunicator(world_size), **options)  # type: ignore[arg-type]
    _step(model, optimizer)
    states = measure_states(optimizer)
    optimizer.zero_grad()
    with track_states(optimizer) as tracker:
        _step(model, optimizer)
    return {**states.as_dict(), "peak_states": tracker.peak_bytes}


def _step(model: nn.Module, optimizer: DistributedOptimizer) -> None:
    """A backward pass that hands over one gradient after the other, last layer first, and a step.

    Autograd holds the gradient of a tied parameter from its last use in the model to its first: from the start here.
    """
    with_aliases = [p for _, p in model.named_parameters(remove_duplicate=False)]
    tied = {id(p) for p in with_aliases if sum(p is q for q in with_aliases) > 1}
    trainable = [p for p in model.parameters() if p.requires_grad]
    waiting = {id(p): torch.empty_like(p) for p in trainable if id(p) in tied}
    for parameter in reversed(trainable):
        waiting.pop(id(parameter), None)
        (parameter * torch.ones((), device=parameter.device)).sum().backward()
    optimizer.step()
