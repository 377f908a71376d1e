"""The units of a model that `fully_shard` has sharded, and when their gradients come."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from resireduce import private
from resireduce.core.bucket import accumulation_node
from resireduce.errors import ConfigError, UsageError

# --- One unit of a model that `fully_shard` has sharded: which slices of which gradients it reduces, in which order ---
#
# A unit is what one call of `fully_shard` holds together (a transformer block), and reduces at once.


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
    divisor: object
    """The divisor set by `set_gradient_divide_factor`; None: the number of ranks."""

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
        held = {id(one) for one in self.held}
        for one in self.group.fsdp_params:
            if one.sharded_param.requires_grad == (id(one) in held):
                continue
            raise UsageError(
                f"{str(one._param_fqn)!r} was frozen after resireduce.compress_fsdp(...), or unfrozen, so that "
                "residuals would be added to the gradients of other parameters: do that before, or leave it trained, "
                "with a learning rate of 0 while it is to stay as it is"
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


def held_by(state: Any) -> list[Any]:
    """Return the FSDPParamGroups of `state`, an FSDPState: more than one since torch 2.12."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return list(groups)


def has_replicas(group: Any) -> bool:
    """Whether FSDP itself averages the gradients of `group`, an FSDPParamGroup, between replicas."""
    return getattr(group.mesh_info, "replicate_mesh_dim", None) is not None


# --- The units of a model that `fully_shard` has sharded, found in the order of the model ---
#
# Undocumented parts of FSDP2 are read in this file only.


READS = "resireduce reads FSDP2's units as torch 2.9 to 2.15 have them, and not those of torch {version} ({error}); "


def find_units(model: nn.Module) -> list[Unit]:
    """Return the units of `model` that have trained parameters, in the order of the model; parameters are resharded.

    Raises ConfigError for a model that `fully_shard` has not sharded, or sharded in a way that leaves no hook.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[int, Unit] = {}
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        module.reshard()
        name = names[id(module)] or "(root)"
        try:
            for group in _groups(module, name):
                if id(group) not in found:
                    found[id(group)] = _unit(name, module, group, model)
        except AttributeError as error:
            raise ConfigError(READS.format(version=torch.__version__, error=error) + "install one of those") from error
    if not found:
        raise ConfigError(
            f"model: {type(model).__name__} is not sharded; call fully_shard(...) of torch.distributed.fsdp on it "
            "first, or use resireduce.distribute(...), which needs no sharding"
        )
    return [unit for unit in found.values() if unit.slices]


def _groups(module: FSDPModule, name: str) -> list[Any]:
    """Return the group that FSDP reduces at once for `module`; none if its parameters are all in other units."""
    groups = held_by(module._get_fsdp_state())
    if len(groups) > 1:
        raise ConfigError(
            f"model: {name!r} is sharded over several meshes by shard_placement_fn, where FSDP has no hook; call "
            "fully_shard on each part with its own mesh"
        )
    for group in groups:
        _check_group(group, name)
    return groups


def _check_group(group: Any, name: str) -> None:
    """Raise ConfigError unless `group`, of module `name`, is sharded over one dimension, and has no hook."""
    if has_replicas(group):
        raise ConfigError(
            f"model: {name!r} is sharded over a mesh that has replicas too, between which FSDP averages without "
            "compression; give fully_shard the dimension of the shards alone: mesh=mesh['shard']"
        )
    if group._all_reduce_hook is not None:
        raise ConfigError(
            f"model: {name!r} has an all-reduce hook already, and can have one only; if it is that of an earlier "
            "compress_fsdp(...), use what that returned, or take it off by set_all_reduce_hook(None)"
        )
    for parameter in group.fsdp_params:
        placements = parameter.sharded_param.placements
        if len(placements) > 1:
            raise ConfigError(
                f"model: a parameter of {name!r} is split in several ways {tuple(placements)} (tensor parallelism?), "
                "which is not supported; give a model that only fully_shard has split"
            )


def _unit(name: str, module: FSDPModule, group: Any, model: nn.Module) -> Unit:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [parameter for parameter in group.fsdp_params if parameter.sharded_param.requires_grad]
    slices, start = [], 0
    for parameter in trained:
        info = parameter._module_info
        slices.append(Slice(names[id(getattr(info.module, info.param_name))], parameter.sharded_size, start))
        start += parameter.padded_sharded_param_size.numel()
    first = (trained or group.fsdp_params)[0]
    computed = (
        None if hasattr(first, "sharded_grad_dtype") else first.mp_policy.param_dtype
    )  # torch 2.15 widens gradients
    dtype = first.mp_policy.reduce_dtype or computed or first.sharded_param.dtype
    state = module._get_fsdp_state()
    unit = Unit(
        name,
        module,
        tuple(slices),
        start,
        dtype,
        group.device,
        group,
        tuple(trained),
        state,
        group.gradient_divide_factor,
    )
    assert not unit.is_in_backward, "it is read here to find out whether this torch has it"
    return unit


def shard_group(units: list[Unit]) -> dist.ProcessGroup:
    """Return the ranks over which `units` are sharded. Raises ConfigError if they are not the same for all."""
    groups = [unit.group.mesh_info.shard_process_group for unit in units]
    ranks = [tuple(dist.get_process_group_ranks(group)) for group in groups]
    for unit, one in zip(units, ranks, strict=True):
        if one != ranks[0]:
            raise ConfigError(
                f"model: {unit.name!r} is sharded over ranks {one} and {units[0].name!r} over {ranks[0]}; give all "
                "the same mesh"
            )
    first: dist.ProcessGroup = groups[0]
    return first


def likes(units: Sequence[Unit]) -> dict[str, nn.Parameter]:
    """Return a tensor like this rank's slice of each gradient of `units`, by name, without memory of its own."""
    found: dict[str, nn.Parameter] = {}
    for unit in units:
        element = torch.empty((), dtype=unit.dtype, device=unit.device)
        found |= {one.name: nn.Parameter(element.expand(one.shape), requires_grad=False) for one in unit.slices}
    return found


def frozen_shards(units: Sequence[Unit]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and this rank's slice of each frozen parameter under the roots of `units`."""
    roots = {id(unit.state._state_ctx): unit.state._state_ctx for unit in units}
    groups = [group for root in roots.values() for state in root.all_states for group in held_by(state)]
    for one in (parameter for group in groups for parameter in group.fsdp_params):
        if not one.sharded_param.requires_grad:
            yield one._param_fqn, one.sharded_param.detach().to_local()


def smallest_shards(units: Sequence[Unit]) -> list[tuple[Unit, Callable[[], Tensor]]]:
    """Return the unit of each parameter of `units`, and a function that returns this rank's shard of it: those that are
    not empty, the smallest first."""
    found = [
        (one.shape.numel(), unit, held) for unit in units for one, held in zip(unit.slices, unit.held, strict=True)
    ]
    ordered = sorted((each for each in found if each[0]), key=lambda each: each[0])
    return [(unit, partial(getattr, held, "sharded_param")) for _, unit, held in ordered]


# --- Units that FSDP2 reduces before their gradients have come: these are zeros, which need no exchange ---
#
# With `set_reduce_scatter_unused_params(True)` a module that is called several times is reduced once for each call,
# while autograd makes the gradients of its parameters at the last.


class Early:
    """Knows whether the gradients of one unit are still to come in the backward pass that reduces it.

    Args:
        unit: is watched from the next forward pass on.
    """

    def __init__(self, unit: Unit):
        self._unit = unit
        self._watched: list[Tensor] = []
        self._has_come = False
        unit.module.register_forward_pre_hook(self._watch)  # type: ignore[attr-defined]

    def is_early(self) -> bool:
        """Whether no gradient has come since the last call, and some will in this pass; the same on all ranks.

        FSDP then reduces the unit again; what it reduces now are zeros.
        """
        came, self._has_come = self._has_come, False
        is_by_hand = private.current_pass() == -1  # after all passes
        if came or is_by_hand or not self._unit.makes_zeros:
            return False
        gathered = self._unit.gathered()
        known = all(any(one is other for other in self._watched) for one in gathered)
        return known and any(map(_will_come, gathered))

    @torch.compiler.disable
    def _watch(self, *_: object) -> None:
        """Before a forward pass, when FSDP has gathered the unit: watch for the gradients that it will have.

        Raises UsageError if FSDP is still within a backward pass, which has failed.
        """
        if self._unit.is_in_backward and private.current_pass() == -1:
            raise UsageError(
                "an earlier backward pass failed half-way, after which FSDP neither reduces nor reshards some units: "
                "build model and optimizer anew, on every rank, from a checkpoint"
            )
        if not self._unit.makes_zeros:
            return
        for one in self._unit.gathered():
            if not any(one is other for other in self._watched):
                self._watched.append(one)
                one.register_post_accumulate_grad_hook(self._note)

    @torch.compiler.disable
    def _note(self, _: Tensor) -> None:
        self._has_come = True


def _will_come(parameter: Tensor) -> bool:
    """Whether the backward pass under way makes, or has made, a gradient of `parameter`."""
    return bool(private.runs_in_pass(accumulation_node(parameter)))


# --- The end of a backward pass under FSDP2, which does not say itself which unit is the last to be reduced ---


class PassEnd:
    """Calls `end` at the end of each backward pass in which `expect` has been called.

    A pass may leave out any unit, as stochastic depth does, and reduce another one twice, so that a count of units does
    not show its end.

    Args:
        units: those of the model.
        end: is called once all of them that are reduced in the pass have been.
    """

    def __init__(self, units: Sequence[Unit], end: Callable[[], None]):
        self._units, self._end = units, end
        self._task = -1
        self.stream: torch.cuda.Stream | None = None
        """The stream on which units are reduced, if they are on a GPU: `end` is called on it, too."""

    @property
    def is_under_way(self) -> bool:
        """Whether FSDP is within a backward pass."""
        return any(unit.is_in_backward for unit in self._units)

    @property
    def is_by_hand(self) -> bool:
        """Whether units are reduced outside of any pass: torch's pipelines do so after those of all microbatches."""
        return bool(private.current_pass() == -1)

    def expect(self) -> bool:
        """Within a pass: have `end` called at its end. Return whether autograd has begun a pass since the last call.

        A reentrant activation checkpoint runs passes within the pass.
        """
        task = private.current_pass()
        if task == self._task:
            return False
        self._task = task
        private.at_end_of_pass(partial(self._check, False))
        return True

    def _check(self, is_last: bool) -> None:
        """End, unless FSDP may have units to reduce in callbacks after this one, or this pass is within another."""
        if self.is_under_way:
            if not is_last:
                private.at_end_of_pass(partial(self._check, True))
        elif self.stream is None:
            self._end()
        else:
            with torch.cuda.stream(self.stream):
                self._end()
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
