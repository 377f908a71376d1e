"""The all-reduce hook of FSDP2: what happens to the gradients of one unit after they have been reduce-scattered."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resireduce.agreement import STEP, agree
from resireduce.comm.base import Communicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError
from resireduce.left_out import Outside
from resireduce.payload import Payload
from resireduce.refusals import refuse_capture, refuse_compiled_autograd
from resireduce.sending.message import Round
from resireduce.step.drift import digest
from resireduce.step.make_slots import make_slots
from resireduce.step.slot import Slot
from resireduce.wrappers.first_steps import WATCHED, FirstSteps
from resireduce.wrappers.fsdp_early import Early
from resireduce.wrappers.fsdp_pass import PassEnd
from resireduce.wrappers.fsdp_unit import Unit
from resireduce.wrappers.fsdp_units import frozen_shards, likes, smallest_shards
from resireduce.wrappers.shard_state import ShardState
from resireduce.wrappers.under_way import UnderWay


class ShardedCompressionHook(ShardState):
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
        super().__init__(feedback, shards)
        self.units = tuple(units)
        held = {name: like for name, like in likes(self.units).items() if like.numel()}
        self.slots = make_slots(held, feedback)
        self._slot_of = {slot.name: slot for slot in self.slots}
        self._under_way = UnderWay(feedback, sum(slot.nbytes for slot in self.slots) // 16)
        self._reduced: set[Unit] = set()
        self._failed, self._is_known, self._is_fresh = False, False, True
        self._pass = PassEnd(self.units, self._end_step)
        for slot in self.slots:
            feedback.register(slot.name, slot.parameter)
        self._watched = smallest_shards(self.units)[:WATCHED]
        self._first_steps = FirstSteps([shard for _, shard in self._watched])
        self.outside: Outside | None = None
        """Warns, at the end of a pass, of parameters that no unit holds."""
        self._early = {unit: Early(unit) for unit in self.units}
        for unit in self.units:
            unit.set_hook(partial(_reduce, self, unit))

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raise UsageError: a copy would be no hook of any model."""
        raise UsageError(
            "the hook of resireduce.compress_fsdp(...) cannot be copied or pickled: save its residual_state_dict(), or "
            "give it to torch.distributed.checkpoint"
        )

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0. Raises UsageError within a backward pass."""
        super().start_at(step)
        self._is_fresh = True

    @property
    def _is_within_pass(self) -> bool:
        return self._pass.is_under_way

    def _begin_step(self, step: int) -> None:
        self._reduced.clear()
        super()._begin_step(step)

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
        self._under_way.send(views, flat, self._compress)
        self._under_way.receive_all()
        if unit.divisor is not None:  # FSDP has divided by it, in place of the number of ranks
            flat.mul_(self.feedback.communicator.world_size)
        self._reduced.add(unit)
        self._failed = False
        if self._pass.is_by_hand and len(self._reduced) == len(self.units):
            self._end_step()

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
        is_new = self._begins_step(unit)
        if is_new:
            unit.check_others()
            self._first_steps.begin()
        if unit in self._reduced:
            self._end_step() if is_new else self._fold()
        if flat.is_cuda:
            self._hold(flat)

    def _begins_step(self, unit: Unit) -> bool:
        """Whether `unit` is the first one to be reduced in a backward pass, or by hand; the end is then awaited.

        By hand there is no pass whose end could be awaited: each unit is reduced once.
        """
        if self._pass.is_by_hand:
            return not self._reduced or unit in self._reduced
        return self._pass.expect()

    def _compress(self, slot: Slot, grad: Tensor) -> Payload | Round:
        """Return the payload of a slice, or its first round; made from a copy, unless it is sent dense.

        A group's residual may hold an error until its turn comes, and FSDP's memory receives the average before that.
        """
        own = grad.clone() if self.feedback.leaves_residual(slot.name) else grad
        return self.feedback.compress(own, slot.name, self.steps)

    def _fold(self) -> None:
        """End the step of the residuals, so that a unit that was called twice may be reduced again."""
        self.feedback.residual.end_step(self.steps)
        self._reduced.clear()

    @torch.no_grad()
    def _end_step(self) -> None:
        """End the current step, if a unit has been reduced in it; one that no pass reached is left as it is."""
        if self._reduced:
            if not any(shard()._post_accumulate_grad_hooks for _, shard in self._watched):
                # Hooks may hold the optimizer, which has taken its step before the end of the pass.
                self._first_steps.end([unit in self._reduced for unit, _ in self._watched], self._has_new_residuals())
            self._fold()
            self.feedback.states.commit()
            self._begin_step(self.steps + 1)
        if self.outside is not None:
            self.outside.warn()

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
    """Reduce `unit`: FSDP calls a hook with the flat tensor alone."""
    hook.reduce(unit, flat)
