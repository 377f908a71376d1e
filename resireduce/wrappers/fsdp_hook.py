"""The all-reduce hook of FSDP2: what happens to the gradients of one unit after they have been reduce-scattered."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resireduce.agreement import STEP, agree
from resireduce.attach import refuse_capture, refuse_compiled_autograd
from resireduce.comm.base import Communicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import ConfigError, UsageError, check_steps
from resireduce.payload import Payload
from resireduce.sending.message import Round
from resireduce.step.buckets import buckets
from resireduce.step.drift import digest
from resireduce.step.make_slots import make_slots
from resireduce.step.slot import Slot
from resireduce.wrappers.comm_hook import WITHIN
from resireduce.wrappers.first_steps import WATCHED, FirstSteps
from resireduce.wrappers.fsdp_early import Early
from resireduce.wrappers.fsdp_pass import PassEnd
from resireduce.wrappers.fsdp_units import Unit, frozen_shards, likes, smallest_shards
from resireduce.wrappers.under_way import UnderWay

SHARD = ("shard_rank", "shard_world_size")
"""Additional keys of a residual state: the number of this rank's shard, and how many there are."""


class ShardedCompressionHook:
    """Made by `compress_fsdp`: holds this rank's residuals, of the slices that it owns, and the messages under way.

    FSDP calls it for one unit after the other, in the order of the backward pass, which is the same on all ranks. What
    a unit sends is received before the next one sends: FSDP needs the averages at once, on the stream on which it calls
    the hook, so that a GPU computes in the meantime.

    Args:
        units: the units of the model, in its order.
        feedback: compresses slices over the replicas, and holds their residuals.
        shards: the ranks over which each replica is sharded.
    """

    def __init__(self, units: Sequence[Unit], feedback: ErrorFeedback, shards: Communicator):
        self.feedback, self.units = feedback, tuple(units)
        self.steps = 0
        """How many backward passes have averaged gradients, of all units or of some."""
        self._shards = shards
        held = {name: like for name, like in likes(self.units).items() if like.numel()}
        self.slots = make_slots(held, feedback)
        self._slot_of = {slot.name: slot for slot in self.slots}
        self._under_way = UnderWay(feedback, sum(slot.nbytes for slot in self.slots) // 16)
        self._reduced: set[Unit] = set()
        self._failed, self._is_known, self._is_told, self._is_fresh = False, False, False, True
        self._pass = PassEnd(self.units, self._end_step)
        for slot in self.slots:
            feedback.register(slot.name, slot.parameter)
        self._watched = smallest_shards(self.units)[:WATCHED]
        self._first_steps = FirstSteps([shard for _, shard in self._watched])
        self._early = {unit: Early(unit) for unit in self.units}
        for unit in self.units:
            unit.set_hook(partial(_reduce, self, unit))

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raise UsageError: a copy would be no hook of any model."""
        raise UsageError(
            "the hook of resireduce.compress_fsdp(...) cannot be copied or pickled: save its residual_state_dict(), or "
            "give it to torch.distributed.checkpoint"
        )

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals. They differ between ranks: save one file per rank, or give this object to
        DCP.

        UsageError within a backward pass, of which they would have a part; so for `start_at`, and for loading.
        """
        self._refuse_within_pass("residual_state_dict()")
        self._end_step()  # of a pass that failed
        place = (self._shards.rank, self._shards.world_size)
        named = {key: torch.tensor(value, device="cpu") for key, value in zip(SHARD, place, strict=True)}
        return self.feedback.state_dict(self.steps) | named

    def load_residual_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the `state` that this rank of a job of the same mesh saved: its residuals, and the step number.

        ConfigError if they belong to another model, scheme, residual_dtype, shard or replica.
        """
        self._refuse_within_pass("load_residual_state_dict()")
        (own,) = self.of_this_shard([state])
        self.start_at(self.feedback.load_state_dict(own))

    def of_this_shard(self, states: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return those of `states`, one saved by each rank, that belong to this rank's shard, without its number.

        ConfigError if there is none, or if they were saved by a job with another number of shards.
        """
        rank, world_size = self._shards.rank, self._shards.world_size
        places = [tuple(int(state.get(key, -1)) for key in SHARD) for state in states if isinstance(state, Mapping)]
        other = next((place for place in places if place[1] != world_size), None)
        if len(places) < len(states) or other == (-1, -1):
            raise ConfigError("residual state: it is none of a sharded model; give what residual_state_dict() made")
        if other is not None:
            raise ConfigError(
                f"residual state: it is of {other[1]} shards, and this model has {world_size}; slices of residuals are "
                "not cut anew: go on with as many shards (the number of replicas may change: resireduce.redistribute)"
            )
        found = [
            {key: state[key] for key in state if key not in SHARD}
            for state, place in zip(states, places, strict=True)
            if place[0] == rank
        ]
        if not found:
            raise ConfigError(f"residual state: none is that of shard {rank}, which this rank holds; load its own")
        return found

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return `residual_state_dict` for torch.distributed.checkpoint, under a key that only this rank has.

        If several ranks use one name for a tensor, DCP saves only one, and the others would be lost.
        """
        return {f"replica {self.feedback.communicator.rank}, shard {self._shards.rank}": self.residual_state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a `state` that `state_dict` made; ConfigError if it has nothing of this rank."""
        (key,) = self.state_dict()
        if key not in state:
            raise ConfigError(f"residual state: it has nothing of {key}; go on with as many ranks, or use redistribute")
        self.load_residual_state_dict(state[key])

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0; call it between two steps."""
        check_steps("step", step)
        self._refuse_within_pass("start_at()")
        self._is_fresh = self._is_told = True
        self._begin_step(step)

    def _refuse_within_pass(self, what: str) -> None:
        if self._pass.is_under_way:
            raise UsageError(WITHIN.format(what=what))

    def _begin_step(self, step: int) -> None:
        self.steps = step
        self._reduced.clear()
        self.feedback.begin_step(step)

    @torch.no_grad()
    def reduce(self, unit: Unit, flat: Tensor) -> None:
        """Put the average over the replicas into 1-D `flat`, which holds this rank's slices of `unit`'s gradients.

        Raises NonFiniteGradient, which names the parameter, if one holds NaN or infinity; UsageError if `flat` is not
        what `unit` was at the start, or after a step that has failed. Zeros that come before gradients stay zeros.
        """
        self._begin(unit, flat)
        if self._early[unit].is_early():
            assert not flat.any(), "what is let go is zeros"
            self._failed = False
            return
        views = {self._slot_of[one.name]: one.of(flat) for one in unit.slices if one.name in self._slot_of}
        slots = sorted(views, key=lambda slot: -slot.index)  # last to first, as groups of residuals want them
        whole = all(not self.feedback.leaves_residual(slot.name) for slot in slots)
        for group in [slots] if whole and slots else buckets(slots):
            made, targets = [self._compress(slot, views[slot]) for slot in group], [views[slot] for slot in group]
            if whole:  # one all-reduce in FSDP's own memory, as it makes one without a hook
                made, targets = [Payload.pack(flat, like=flat)], [flat]
            self._under_way.send(made, group[0].name, targets)
        self._under_way.receive_all()
        if unit.divisor is not None:  # FSDP has divided by it, in place of the number of ranks
            flat.mul_(self.feedback.communicator.world_size)
        self._finish(unit)

    def _begin(self, unit: Unit, flat: Tensor) -> None:
        if self._failed:
            raise UsageError(
                "an earlier step failed, and replicas may have been given different averages: build model and "
                "optimizer anew, on every rank, from a checkpoint"
            )
        self._failed = True  # whatever ends it half-way
        refuse_compiled_autograd()
        refuse_capture(flat.device)
        unit.check(flat)
        if not self._is_known:
            self._compare_replicas()
        is_new = self._pass.expect()
        if is_new:
            unit.check_others()
            self._first_steps.begin()
        if unit in self._reduced:
            self._end_step() if is_new else self._fold()
        if flat.is_cuda:
            self._hold(flat)

    def _compress(self, slot: Slot, grad: Tensor) -> Payload | Round:
        """Return the payload of a slice, or its first round; made from a copy, unless it is sent dense.

        A group's residual may hold an error until its turn comes, and FSDP's memory receives the average before that.
        """
        own = grad.clone() if self.feedback.leaves_residual(slot.name) else grad
        return self.feedback.compress(own, slot.name, self.steps)

    def _finish(self, unit: Unit) -> None:
        self._reduced.add(unit)
        self._failed = False

    def _fold(self) -> None:
        """Have residuals take in all that is left so far: a unit that was called twice may be reduced again."""
        self.feedback.residual.end_step(self.steps)
        self._reduced.clear()

    @torch.no_grad()
    def _end_step(self) -> None:
        """End the current step, if a unit has been reduced in it; one that no pass reached is left as it is."""
        if self._reduced:
            is_new = not self._is_told and bool(self.feedback.residual.tensors())
            self._is_told = False
            self._first_steps.end([unit in self._reduced for unit, _ in self._watched], is_new)
            self._fold()
            self.feedback.states.commit()
            self._begin_step(self.steps + 1)

    def _compare_replicas(self) -> None:
        """Raise ConfigError on all ranks unless replicas start with the same parameters, and go on from one step."""
        held = dict(frozen_shards(self.units)) | {name: one for unit in self.units for name, one in unit.shards()}
        mine = {f"values of {name} (a checksum)": str(digest([one])) for name, one in held.items()}
        agree(mine | {STEP: str(self.steps)}, self.feedback.communicator, beside=self._shards)
        self._is_known = True

    def _hold(self, flat: Tensor) -> None:
        """Keep memory of other streams from being reused while the hook's stream uses it."""
        stream = self._pass.stream = torch.cuda.current_stream(flat.device)
        flat.record_stream(stream)
        if self._is_fresh:
            for tensor in self.feedback.state_dict(0).values():
                if tensor.is_cuda:
                    tensor.record_stream(stream)
            self._is_fresh = False


@torch.compiler.disable
def _reduce(hook: ShardedCompressionHook, unit: Unit, flat: Tensor) -> None:
    """Call `hook` as FSDP calls hooks: with the flat tensor alone."""
    hook.reduce(unit, flat)
