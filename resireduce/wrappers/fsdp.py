"""`resireduce.compress_fsdp`: replicas of a model that `fully_shard` has sharded exchange compressed slices.

Undocumented parts of FSDP2 are read in this file only, in its first half: units, and when their gradients come.

Within a replica (a node) FSDP2 works as usual: gradients are reduce-scattered without compression, and each rank owns a
slice of every tensor. Between replicas that slice is compressed, with error feedback: a residual is a slice, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from resireduce import private
from resireduce.comm.torch import TorchCommunicator
from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, UsageError, check
from resireduce.grouping import Grouping
from resireduce.residuals.base import DecayedResidual
from resireduce.resume import SHARD
from resireduce.scheme import Scheme
from resireduce.watchers import digest, refuse_capture, refuse_compiled_autograd
from resireduce.wrappers.hooks import HookState

# --- The units of a model that `fully_shard` has sharded: which slices each reduces, and in which order ---


class Unit:
    """What one call of `fully_shard` holds together (a transformer block): this rank's slices of its gradients, and the
    flat tensor that its reduce-scatter leaves.

    `group` is the FSDPParamGroup in torch, of the `module` that is called `name` in the model; `names` are those of
    parameters, by id. Raises ConfigError unless it is sharded over one dimension, and has no hook.
    """

    def __init__(self, name: str, module: FSDPModule, group: Any, names: Mapping[int, str]):
        if group._all_reduce_hook is not None:
            raise ConfigError(
                f"model: {name!r} has an all-reduce hook already, and can have one only; if it is that of an earlier "
                "compress_fsdp(...), use what that returned, or take it off by set_all_reduce_hook(None)"
            )
        split = [one.sharded_param.placements for one in group.fsdp_params if len(one.sharded_param.placements) > 1]
        if split or has_replicas(group):
            raise ConfigError(
                f"model: {name!r} is sharded over a mesh that has replicas too, between which FSDP averages without "
                "compression (give fully_shard the dimension of the shards alone: mesh=mesh['shard']), or is split by "
                f"tensor parallelism, which is not supported: {split[:1]}"
            )
        self.name, self.module, self.group = name, module, group
        self.trained: dict[str, Any] = {}
        """The FSDPParam of each trained parameter, by its name in the model, in the order of the flat tensor."""
        for held in trained_by(group):
            info = held._module_info
            self.trained[names[id(getattr(info.module, info.param_name))]] = held
        self.numel = sum(held.padded_sharded_param_size.numel() for held in self.trained.values())
        """Elements of the flat tensor, padding included."""
        first = next(iter(self.trained.values()))
        is_widened = hasattr(first, "sharded_grad_dtype")  # torch 2.15 adds up gradients in the shards' own dtype
        computed = None if is_widened else first.mp_policy.param_dtype
        self.dtype: torch.dtype = first.mp_policy.reduce_dtype or computed or first.sharded_param.dtype
        """Dtype in which gradients are reduced."""
        self.divisor: object = group.gradient_divide_factor
        """The divisor set by `set_gradient_divide_factor`; None: the number of ranks."""
        assert not self.is_in_backward, "it is read here to find out whether this torch has it"

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return this rank's slice of each gradient, by name, as a view of 1-D `flat`: it may have no elements."""
        found, start = {}, 0
        for name, held in self.trained.items():
            found[name] = flat[start : start + held.sharded_size.numel()].view(held.sharded_size)
            start += held.padded_sharded_param_size.numel()
        return found

    @property
    def root(self) -> Any:
        """What FSDP knows of all modules under the root of this one."""
        return self.module._get_fsdp_state()._state_ctx

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass is under way, whose end FSDP waits for to reduce what has not been reduced."""
        return bool(self.root.post_backward_final_callback_queued)

    def check(self, flat: Tensor) -> None:
        """Raise UsageError unless `flat` holds the gradients of all slices, as they were, and is to be averaged now."""
        group, is_same = self.group, trained_by(self.group) == [*self.trained.values()]
        now = flat.numel(), flat.dtype, group.gradient_divide_factor, group.all_reduce_grads, is_same
        known = self.numel, self.dtype, self.divisor, True, True
        if now != known:
            raise UsageError(
                f"{self.name!r} is not reduced as resireduce.compress_fsdp(...) found it; elements, dtype, divisor, "
                f"whether all ranks average, whether the same parameters are trained: {now}, then {known}. Freeze, "
                "convert and set_gradient_divide_factor before; accumulate by set_requires_gradient_sync(False), not "
                "by set_requires_all_reduce; for parameters that a step may not use call "
                "model.set_reduce_scatter_unused_params(True) (torch 2.13)"
            )


def held_by(state: Any) -> list[Any]:
    """Return the FSDPParamGroups of `state`, an FSDPState: more than one since torch 2.12."""
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def trained_by(group: Any) -> list[Any]:
    """Return the FSDPParams of `group`, an FSDPParamGroup, that are trained now."""
    return [one for one in group.fsdp_params if one.sharded_param.requires_grad]


def has_replicas(group: Any) -> bool:
    """Whether FSDP itself averages the gradients of `group`, an FSDPParamGroup, between replicas."""
    return getattr(group.mesh_info, "replicate_mesh_dim", None) is not None


def find_units(model: nn.Module) -> list[Unit]:
    """Return the units of `model` that have trained parameters, in the order of the model; parameters are resharded.

    Raises ConfigError as `Unit` does, and unless at least one is found, and all are sharded over the same ranks.
    """
    sharded = [(name or "(root)", one) for name, one in model.named_modules() if isinstance(one, FSDPModule)]
    for _, module in sharded:
        module.reshard()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[int, Unit] = {}
    for name, module in sharded:
        for group in held_by(module._get_fsdp_state()):
            if id(group) not in found and trained_by(group):
                found[id(group)] = Unit(name, module, group, names)
    if not found:
        raise ConfigError(
            f"model: {type(model).__name__} has no trained parameter that is sharded; call fully_shard(...) of "
            "torch.distributed.fsdp on it first, or use resireduce.distribute(...), which needs no sharding"
        )
    units = list(found.values())
    first, *others = [dist.get_process_group_ranks(unit.group.mesh_info.shard_process_group) for unit in units]
    if other := next((one for one in others if one != first), None):
        raise ConfigError(f"model: units are sharded over ranks {first} and {other}; give fully_shard one mesh for all")
    return units


def groups_of(units: Sequence[Unit]) -> list[Any]:
    """Return all FSDPParamGroups under the roots of `units`, with trained or frozen parameters."""
    roots = {id(unit.root): unit.root for unit in units}
    return [group for root in roots.values() for state in root.all_states for group in held_by(state)]


# --- The all-reduce hook of FSDP2: what happens to the gradients of one unit after their reduce-scatter ---


class ShardedCompressionHook(HookState):
    """Made by `compress_fsdp`: holds this rank's residuals, of the slices that it owns, and the messages under way.

    FSDP calls it for one unit after the other, in the order of the backward pass, which is the same on all ranks. What
    a unit sends is received before the next one sends: FSDP needs the averages at once, on the stream on which it calls
    the hook, so that a GPU computes in the meantime.

    It takes the options `given` for a `model` that `fully_shard` has sharded; `replicate` is that of `compress_fsdp`.
    """

    def __init__(self, given: Mapping[str, Any], model: nn.Module, replicate: Any):
        self.units = find_units(model)
        is_mesh = isinstance(replicate, DeviceMesh) and replicate.ndim == 1
        across = replicate.get_group() if is_mesh else replicate
        wanted = "a mesh of one dimension, such as mesh['replicate'], or a process group that this rank is in"
        check("replicate", replicate, isinstance(across, dist.ProcessGroup), wanted)
        ranks = self.units[0].group.mesh_info.shard_process_group
        self._shards, replicas = TorchCommunicator(ranks, shares=True), TorchCommunicator(across)
        slices: dict[str, nn.Parameter] = {}  # like those of gradients, without memory of their own
        for unit in self.units:
            flat = torch.empty((), dtype=unit.dtype, device=unit.group.device).expand(unit.numel)
            slices |= {name: nn.Parameter(view, requires_grad=False) for name, view in unit.views(flat).items()}
        parameters = {name: parameter for name, parameter in model.named_parameters() if name in slices}
        found = {f"unit {unit.name!r}": f"{[*unit.trained]} in {unit.dtype}" for unit in self.units}
        reason = (
            "in no unit of fully_shard(...), so that each rank has its own gradient of it: unfreeze or add it before, "
            "and call fully_shard(model) too, or average it yourself"
        )
        super().__init__(given, model, parameters, replicas, reason, (), slices, units=found, shards=self._shards)
        self.feedback.place = {**self.feedback.place, SHARD[0]: self._shards.rank, SHARD[1]: self._shards.world_size}
        self._slot_of = {slot.name: slot for slot in self.slots}
        self._reduced: set[Unit] = set()
        self._failed, self._is_fresh = False, True
        self._task: int | None = None  # which run of autograd's engine the last unit was of
        self._stream: torch.cuda.Stream | None = None  # on which units are reduced, if they are on a GPU
        for unit in self.units:
            unit.module.register_forward_pre_hook(partial(self._refuse_after_failure, unit))  # type: ignore[attr-defined]
            unit.module.set_all_reduce_hook(partial(self.reduce, unit))

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0."""
        super().start_at(step)
        self._is_fresh = True

    @property
    def _is_within_step(self) -> bool:
        return any(unit.is_in_backward for unit in self.units)

    @torch.compiler.disable
    @torch.no_grad()
    def reduce(self, unit: Unit, flat: Tensor) -> None:
        """Put the average over the replicas into 1-D `flat`, which holds this rank's slices of `unit`'s gradients.

        Raises NonFiniteGradient, which names the parameter, if one holds NaN or infinity; UsageError if `flat` is not
        what `unit` was at the start, or after a step that has failed.
        """
        self._refuse_after_failure(unit)
        self._failed = True  # whatever ends it half-way
        self._begin(unit, flat)
        views = unit.views(flat)
        self._send({self._slot_of[name]: view for name, view in views.items() if name in self._slot_of}, flat)
        self._receive_all()
        if unit.divisor is not None:  # FSDP has divided by it, in place of the number of ranks
            flat.mul_(self.feedback.communicator.world_size)
        self._reduced.add(unit)
        self._failed = False

    @torch.compiler.disable
    def _refuse_after_failure(self, unit: Unit, *_: object) -> None:
        """Raise UsageError if a unit failed, or, before a forward pass, if FSDP still waits for the end of a pass."""
        if self._failed or (unit.is_in_backward and private.current_pass() == -1):
            raise UsageError(
                "an earlier step failed half-way: replicas may have been given different averages, and FSDP neither "
                "reduces nor reshards some units; build model and optimizer anew, on every rank, from a checkpoint"
            )

    def _begin(self, unit: Unit, flat: Tensor) -> None:
        """Before `unit` is sent, refuse what would be wrong, and have the step end with this backward pass."""
        refuse_compiled_autograd()
        refuse_capture(flat.device)
        unit.check(flat)
        if not self._is_known:  # replicas start with the same parameters, and go on from one step
            held = [one for group in groups_of(self.units) for one in group.fsdp_params]
            values = {"place in the mesh": f"shard {self._shards.rank} of {self._shards.world_size}"}
            for number, one in enumerate(held):
                mine = str(digest([one.sharded_param.detach().to_local()]))
                values[f"values of {one._param_fqn} (a checksum), tensor {number}"] = mine
            self._look_around([one.sharded_param for one in held], values, beside=self._shards)
        task = private.current_pass()
        if task != self._task:  # a new pass: which unit is its last is not known, as it may leave out any
            private.at_end_of_pass(partial(self._end_pass, False))  # torch refuses it outside of any, as in a pipeline
            self._task = task
            for group in groups_of(self.units):
                if group._all_reduce_hook is None and not has_replicas(group) and (trained := trained_by(group)):
                    raise UsageError(
                        f"{trained[0]._param_fqn!r} is trained, and each replica would keep a gradient of its own: it "
                        "was unfrozen, or given to fully_shard, after resireduce.compress_fsdp(...), or is no part of "
                        "the model that was given to that. Unfreeze and shard before, and give it the whole model"
                    )
        if unit in self._reduced:
            decays = any(isinstance(self.feedback.residual.of(slot.name), DecayedResidual) for slot in self.slots)
            if decays or self.feedback.compressor.momentum is not None:
                raise UsageError(
                    f"{unit.name!r} is reduced twice in a backward pass, as where it is called twice, so that momentum "
                    "or residuals would decay twice in a step: use a compressor without momentum and a scheme without "
                    "decay"
                )
            self.feedback.end_step(self.steps)  # of the residuals, so that they may be used again
            self._reduced.clear()
        if flat.is_cuda:  # memory of other streams must not be given to others while this one uses it
            self._stream = torch.cuda.current_stream(flat.device)
            for tensor in (flat, *(self.feedback.state_dict(0).values() if self._is_fresh else ())):
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)
            self._is_fresh = False

    def _end_pass(self, is_last: bool) -> None:
        """End the step of this pass, unless more units may come, in callbacks after this one or in a pass around it."""
        if self._is_within_step:
            if not is_last:
                private.at_end_of_pass(partial(self._end_pass, True))
        elif self._reduced:
            self._reduced.clear()
            with torch.no_grad(), torch.cuda.stream(self._stream):  # None changes nothing
                self._end_step()
            if self._stream is not None:
                torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    # --- saved states, for torch.distributed.checkpoint ---

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return `residual_state_dict` under a key that only this rank has.

        Of tensors that several ranks save under one name, torch.distributed.checkpoint keeps a single one.
        """
        return {f"replica {self.feedback.communicator.rank}, shard {self._shards.rank}": self.residual_state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a `state` that `state_dict` made; ConfigError if it has nothing of this rank."""
        (key,) = self.state_dict()
        self.load_residual_state_dict(state.get(key, {}))


def compress_fsdp(
    model: nn.Module,
    replicate: DeviceMesh | dist.ProcessGroup,
    scheme: str | Scheme = "w+2d",
    compressor: str | Compressor = "topk",
    density: float | Callable[[int], float] = 0.01,
    groups: str | Grouping | Mapping[str, object] = "auto",
    residual_dtype: str | None = None,
    dense: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    residual_device: str | None = None,
    warm_up_steps: int = 0,
) -> ShardedCompressionHook:
    """Make replicas of `model` average compressed slices of their gradients, with error feedback.

    Over a two-dimensional mesh FSDP would average between replicas itself. Instead, shard over `mesh["shard"]` alone,
    and give `mesh["replicate"]` here. Call it once, before the first backward pass. Averages are in `.grad` when
    `backward()` returns, so that clipping and any optimizer work on them as usual.

    Args:
        model: all parts of it sharded by `fully_shard` over one dimension; parameters may still be on the meta device.
        replicate: the ranks that hold the same shard, one in each replica: a mesh of one dimension, or a process group.
        scheme, compressor, density, groups, residual_dtype, dense, options, residual_device, warm_up_steps: as in
            `resireduce.distribute`; whole tensors decide which tensors are small, and which form groups, while
            densities and ratios are shares of this rank's slice. Steps are counted by backward passes that synchronise
            gradients. With a compressor that corrects momentum (dgc-momentum) the optimizer must have none, which the
            hook cannot check.

    Raises ConfigError, before anything is changed, for what cannot be used. `backward()` raises NonFiniteGradient on
    the ranks that meet NaN or infinity, as with `resireduce.compress_ddp`; the first one raises ConfigError if replicas
    start with different parameters, which are not made equal here, nor by FSDP itself.
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "replicate")}
    return ShardedCompressionHook(given, model, replicate)
