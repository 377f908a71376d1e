"""One unit of a model that `fully_shard` has sharded: which slices of which gradients it reduces, in which order.

A unit is what one call of `fully_shard` holds together (a transformer block), and reduces at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from resireduce.errors import UsageError


@dataclass(frozen=True)
class Slice:
    """This rank's slice of one gradient, and its place in the flat tensor that its unit reduces."""

    name: str
    """Name of the parameter in the model."""
    shape: torch.Size
    """Shape of the slice, which may have no elements."""
    start: int
    """The index of the first element of the slice in the flat tensor; padding may follow the last one."""

    def of(self, flat: Tensor) -> Tensor:
        """Return the slice as a view of 1-D `flat`, contiguous."""
        return flat[self.start : self.start + self.shape.numel()].view(self.shape)


@dataclass(eq=False)
class Unit:
    """One unit: its slices, and the flat tensor that its reduce-scatter leaves."""

    name: str
    """Name of the module in the model; the model itself is (root)."""
    module: FSDPModule
    slices: tuple[Slice, ...]
    """One for each trained parameter, in the order in which they lie."""
    numel: int
    """Elements of the flat tensor, padding included."""
    dtype: torch.dtype
    """Dtype in which gradients are reduced."""
    device: torch.device
    group: Any
    """The FSDPParamGroup of the unit in torch."""
    held: tuple[Any, ...]
    """The FSDPParam of each slice in torch."""
    state: Any
    """The FSDPState of `module` in torch."""
    divisor: object = None
    """The divisor set by `set_gradient_divide_factor`; None: the number of ranks."""

    def set_hook(self, hook: Callable[[Tensor], None]) -> None:
        """Have FSDP call `hook` with the flat tensor after each reduce-scatter."""
        self.divisor = self.group.gradient_divide_factor
        self.module.set_all_reduce_hook(hook)

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass is under way, whose end FSDP waits for to reduce what has not been reduced."""
        return bool(self.state._state_ctx.post_backward_final_callback_queued)

    @property
    def makes_zeros(self) -> bool:
        """Whether FSDP reduces zeros for parameters without a gradient (torch 2.13)."""
        return bool(getattr(self.group, "reduce_scatter_unused_params", False))

    def gathered(self) -> list[Tensor]:
        """Return the whole parameters of which autograd makes gradients; FSDP makes them at the first use."""
        return [one._unsharded_param for one in self.held if hasattr(one, "_unsharded_param")]

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each trained parameter's name and this rank's slice of its current values."""
        for one, parameter in zip(self.slices, self.held, strict=True):
            yield one.name, parameter.sharded_param.detach().to_local()

    def check_others(self) -> None:
        """Raise UsageError if other parameters under the same root are trained, and not averaged over the replicas."""
        groups = [group for state in self.state._state_ctx.all_states for group in held_by(state)]
        alone = [one for one in groups if one._all_reduce_hook is None and not has_replicas(one)]
        for parameter in (one for group in alone for one in group.fsdp_params):
            if parameter.sharded_param.requires_grad:
                raise UsageError(
                    f"{parameter._param_fqn!r} is trained, and each replica would keep a gradient of its own: it was "
                    "unfrozen, or given to fully_shard, after resireduce.compress_fsdp(...), or is no part of the "
                    "model that was given to that. Unfreeze and shard before, and give it the whole model"
                )

    def check(self, flat: Tensor) -> None:
        """Raise UsageError unless `flat` holds the gradients of all slices, and is to be averaged now."""
        if not self.group.all_reduce_grads:
            raise UsageError(
                f"{self.name!r} is to reduce-scatter without an all-reduce, by set_requires_all_reduce(False), which "
                "compressed gradients cannot be added up by: accumulate by set_requires_gradient_sync(False)"
            )
        if (changed := self._changed()) is not None:
            raise UsageError(
                f"{changed!r} was frozen after resireduce.compress_fsdp(...), or unfrozen, so that residuals would be "
                "added to the gradients of other parameters: do that before, or leave it trained, with a learning rate "
                "of 0 while it is to stay as it is"
            )
        if flat.numel() != self.numel:
            raise UsageError(
                f"{self.name!r} reduces {flat.numel()} elements of this rank, and not {self.numel}: a parameter of it "
                "was not used in this step; for parameters that a step may not use call "
                "model.set_reduce_scatter_unused_params(True) (torch 2.13)"
            )
        if flat.dtype != self.dtype:
            raise UsageError(
                f"{self.name!r} reduces gradients in {flat.dtype}, which were to be {self.dtype}: convert the model, "
                "and choose its mixed precision, before resireduce.compress_fsdp(...)"
            )
        if self.group.gradient_divide_factor != self.divisor:
            raise UsageError(
                f"{self.name!r}: set_gradient_divide_factor({self.group.gradient_divide_factor}) came after "
                f"resireduce.compress_fsdp(...), which knew {self.divisor}: what residuals hold was divided by that. "
                "Call it before"
            )

    def _changed(self) -> str | None:
        """Return the name of a parameter that is trained now and was not when the unit was found, or vice versa."""
        held = {id(one) for one in self.held}
        for one in self.group.fsdp_params:
            if one.sharded_param.requires_grad != (id(one) in held):
                return str(one._param_fqn)
        return None


def held_by(state: Any) -> list[Any]:
    """Return the FSDPParamGroups of `state`, an FSDPState: more than one since torch 2.12."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return list(groups)


def has_replicas(group: Any) -> bool:
    """Whether FSDP itself averages the gradients of `group`, an FSDPParamGroup, between replicas."""
    return getattr(group.mesh_info, "replicate_mesh_dim", None) is not None
