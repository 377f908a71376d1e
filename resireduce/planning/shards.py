"""The model states of a rank under FSDP2 with `resireduce.compress_fsdp`, found without storage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.comm.pretend import PretendCommunicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import ConfigError, is_count
from resireduce.grouping import compressible
from resireduce.pipeline import build_feedback, find_compressor, settle_slices
from resireduce.planning.item import Item
from resireduce.planning.itemise import itemise_states
from resireduce.planning.optimizer_zoo import without_storage
from resireduce.settings import Settings
from resireduce.step.slot import Slot, make_slots

TAKEN = ("scheme", "compressor", "density", "groups", "residual_dtype", "dense", "options", "residual_device")
"""Settings that a plan takes of those of `compress_fsdp`."""
MADE = ("backend", "gradients")
"""Settings that say nothing here: ranks are pretended, and gradients stay in any case, as FSDP2 leaves them."""


def check_shards(shards: Any, world_size: int, given: Settings, compiled: bool) -> None:
    """Raise ConfigError unless `world_size` ranks can be replicas of as many `shards`, with the settings `given`.

    compiled: whether the plan was to be that of a compiled model, which differs only in its fullest moment.
    """
    if not is_count(shards) or not shards or world_size % shards:
        raise ConfigError(
            f"shards: {shards!r} is not allowed with {world_size} ranks; give a divisor of their number: over how many "
            "ranks fully_shard shards each replica"
        )
    others = {one.name: one.default for one in fields(Settings) if one.name not in (*TAKEN, *MADE)}
    values = {**{name: getattr(given, name) for name in others}, "compiled": compiled}
    for name, value in values.items():
        if value != others.get(name, False):
            raise ConfigError(
                f"{name}: {value!r} means nothing with shards, which plan for resireduce.compress_fsdp; leave it out"
            )


def slice_of(parameter: Tensor, name: str, shards: int) -> nn.Parameter:
    """Return a tensor without storage like the slice of `parameter` that the first of `shards` ranks holds.

    FSDP2 divides the first dimension as `torch.chunk` does, so that the first rank has most. Raises ConfigError, which
    says the `name`, for a parameter without dimensions.
    """
    if not parameter.dim():
        raise ConfigError(f"model: {name!r} is a scalar, which fully_shard refuses; make it a tensor of one element")
    rows = -(-parameter.shape[0] // shards)
    whole = torch.empty((rows, *parameter.shape[1:]), dtype=parameter.dtype, device="meta")
    return nn.Parameter(whole, requires_grad=parameter.requires_grad)


@dataclass(frozen=True)
class _Held:
    """A `resireduce.planning.itemise.Holder` of slices, beside which an optimizer of the user's own takes steps."""

    feedback: ErrorFeedback
    slots: list[Slot]
    param_groups: list[dict[str, Any]]
    state: Mapping[Any, Any]


def shard_states(
    model: nn.Module, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], shards: int, given: Settings
) -> tuple[list[Item], dict[str, int]]:
    """Return every tensor of the model states of the first rank, at a step boundary, and bytes beside them.

    Args:
        model: without storage, not sharded.
        make: makes the optimizer from the slices of the trained parameters.
        shards: over how many ranks each replica is sharded.
        given: settings of `compress_fsdp`, whose backend has all ranks.

    Returns:
        items, and a dictionary: host_residuals, frozen and buffers as `resireduce.plan` has them, and full_residuals,
        the bytes of a full residual of all slices that are compressed.
    """
    sliced = {name: slice_of(parameter, name, shards) for name, parameter in model.named_parameters()}
    slices = {name: one for name, one in sliced.items() if one.requires_grad}
    feedback = _feedback(model, slices, shards, given)
    optimizer = make([*slices.values()])
    for one in slices.values():
        one.grad = torch.empty_like(one)
    with without_storage(optimizer, type(optimizer).__name__):
        optimizer.step()
    held = _Held(feedback, make_slots(slices, feedback), optimizer.param_groups, optimizer.state)
    compressed = compressible(model, given.dense).keys() & slices.keys()
    beside = {
        "host_residuals": sum(tensor.nbytes for tensor in feedback.residual.host_tensors()),
        "frozen": sum(one.nbytes for name, one in sliced.items() if name not in slices),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
        "full_residuals": sum(slices[name].nbytes for name in compressed),
    }
    return itemise_states(held), beside


def _feedback(model: nn.Module, slices: Mapping[str, nn.Parameter], shards: int, given: Settings) -> ErrorFeedback:
    """Return the error feedback of `compress_fsdp` over the replicas, with all that it keeps of `slices`."""
    assert isinstance(given.backend, PretendCommunicator)
    replicas = PretendCommunicator(given.backend.world_size // shards)
    parameters = {name: one for name, one in model.named_parameters() if name in slices}
    lossy = find_compressor(given)
    settings = settle_slices(replace(given, gradients="kept"), lossy, model, parameters, slices)
    feedback, _ = build_feedback(model, parameters, lossy, replicas, settings)
    for name, one in slices.items():
        feedback.register(name, one)
    return feedback
