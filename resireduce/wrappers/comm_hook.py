"""The communication hook of DistributedDataParallel: what happens to one bucket of gradients."""

import weakref
from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError
from resireduce.payload import Payload
from resireduce.sending.message import Round
from resireduce.step.buckets import buckets
from resireduce.step.slot import Slot, make_slots
from resireduce.step.stage import Stage
from resireduce.wrappers.under_way import UnderWay

LEFT = (
    "the gradient of {name!r} is that of an earlier backward pass, and this rank does not use it in this one: add up "
    "passes within no_sync() of DistributedDataParallel, call zero_grad() after each step, or give "
    "gradient_as_bucket_view=True to DistributedDataParallel"
)
"""Where averages of an earlier pass are left in the way."""


class CompressionHook:
    """Made by `compress_ddp`: holds this rank's residuals, and the messages under way within one backward pass.

    Messages leave in the order of the buckets, which is the same on all ranks, over the wrapper's own process group.
    Gathered ones take world size x payload bytes each: beyond a sixteenth of all gradients the oldest are received,
    within the backward pass, before the next is launched. The others are received when the last bucket comes.

    Args:
        parameters: all parameters whose gradients the wrapper averages, by name, in the order of the model.
        feedback: compresses gradients, and holds their residuals.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], feedback: ErrorFeedback):
        self.feedback = feedback
        self.steps = 0
        """How many times all gradients have been averaged."""
        self.slots = make_slots(parameters, feedback)
        self._slot_of: dict[Tensor, Slot] = {slot.parameter: slot for slot in self.slots}
        self._under_way = UnderWay(feedback, sum(slot.nbytes for slot in self.slots) // 16)
        self._restart()
        for slot in self.slots:
            feedback.register(slot.name, slot.parameter)
            slot.parameter.register_post_accumulate_grad_hook(partial(_mark_present, weakref.ref(slot)))

    def _restart(self) -> None:
        self._under_way.drop()
        self._results: list[tuple[Future[Tensor], Tensor]] = []
        self.feedback.begin_step(self.steps)
        for slot in self.slots:
            slot.restart()

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals. They differ between ranks: save one file per rank."""
        return self.feedback.state_dict(self.steps)

    def load_residual_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the `state` that this rank of a job of the same size saved: its residuals, and the step number.

        ConfigError if they belong to another model, scheme or residual_dtype.
        """
        self.start_at(self.feedback.load_state_dict(state))

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0; call it between two steps."""
        self.steps = step
        self.feedback.begin_step(step)

    @torch.no_grad()
    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Launch the messages of a `bucket`, whose memory receives the averages; the last bucket completes the futures.

        Raises NonFiniteGradient, which names the parameter, if a gradient holds NaN or infinity; UsageError for sparse
        gradients, and for unknown parameters. The wrapper refuses to go on after a step that has failed.
        """
        slots, buffer = self._slots_of(bucket), bucket.buffer()
        views = _views(buffer, slots)
        whole = all(not self.feedback.leaves_residual(slot.name) for slot in slots)
        slots.sort(key=lambda slot: -slot.index)  # last to first, as groups of residuals want them
        for group in [slots] if whole else buckets(slots):
            made, targets = [self._compress(slot, views[slot]) for slot in group], [views[slot] for slot in group]
            if whole:  # one all-reduce in the bucket's own memory, as without a hook
                made, targets = [Payload.pack(buffer, like=buffer)], [buffer]
            self._under_way.send(made, group[0].name, targets)
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._results.append((future, buffer))
        if bucket.is_last():
            self._finish()
        return future

    def _slots_of(self, bucket: dist.GradBucket) -> list[Slot]:
        slots = [self._slot_of.get(parameter) for parameter in bucket.parameters()]
        known = [slot for slot in slots if slot is not None]
        if len(known) < len(slots):
            raise UsageError(
                "a parameter was frozen between DistributedDataParallel(...) and resireduce.compress_ddp(...): freeze "
                "before the model is wrapped"
            )
        if bucket.buffer().layout != torch.strided:
            raise UsageError(f"the gradient of {known[0].name!r} is sparse: make its layer with sparse=False")
        return known

    def _compress(self, slot: Slot, grad: Tensor) -> Payload | Round:
        """Return the payload of a gradient, or its first round.

        It is of zeros, which leave the residual as it is, if this rank has no gradient. It is made from a copy: a
        group's residual may hold an error until its turn comes, and the bucket receives averages before that.
        """
        self._mark_left(slot, grad)
        if not slot.is_taken:
            grad.zero_()
            return self.feedback.absent(slot.parameter, slot.name, self.steps)
        own = (
            grad.contiguous()
            if not self.feedback.leaves_residual(slot.name)
            else grad.clone(memory_format=torch.contiguous_format)
        )
        return self.feedback.compress(own, slot.name, self.steps)

    def _mark_left(self, slot: Slot, grad: Tensor) -> None:
        """Note that this rank has a gradient in the bucket, `grad`, that an earlier pass has left in `.grad`: the
        wrapper averages it again, where a script adds up passes without `no_sync()`. Zeros count for none.

        Raises UsageError where the wrapper leaves `.grad` as it is if no rank has used the parameter, which the hook
        cannot know: what was sent would then be lost, but have left the residual.
        """
        left = slot.parameter.grad
        if slot.is_taken or left is None or not bool(grad.any()):
            return
        if self.feedback.leaves_residual(slot.name) and left.data_ptr() != grad.data_ptr():
            raise UsageError(LEFT.format(name=slot.name))
        slot.go(Stage.TAKEN)

    def _finish(self) -> None:
        self._under_way.end_rounds()
        self.feedback.residual.end_step(self.steps)
        self.steps += 1
        self._under_way.receive_all()
        self._keep_states_of_absent()
        self.feedback.states.commit()
        for future, buffer in self._results:
            future.set_result(buffer)
        self._restart()

    def _keep_states_of_absent(self) -> None:
        """Forget what a compressor has learnt of a tensor of which no rank had a gradient: that they sent zeros."""
        learning = [slot for slot in self.slots if self.feedback.learns(slot.name)]
        if not learning:
            return
        ranks = self.feedback.communicator
        here = torch.tensor([int(slot.is_taken) for slot in learning], device=ranks.control_device)
        present: list[int] = ranks.all_reduce(here, "resireduce.presence").wait().tolist()
        for slot, count in zip(learning, present, strict=True):
            if not count:
                self.feedback.states.keep(slot.name)


@torch.compiler.disable
def _mark_present(place: weakref.ref[Slot], _: Tensor) -> None:
    """Note that this rank has a gradient, from this backward pass or from an earlier one within `no_sync()`."""
    slot = place()
    if slot is not None and not slot.is_taken:
        slot.go(Stage.TAKEN)


def _views(buffer: Tensor, slots: list[Slot]) -> dict[Slot, Tensor]:
    """Return each gradient in the flat bucket, laid out as by the wrapper: like its parameter, if that has no gaps."""
    views, start = {}, 0
    for slot in slots:
        parameter = slot.parameter
        flat = buffer[start : start + parameter.numel()]
        # Strides survive empty_like only if the tensor has neither gaps nor overlaps.
        dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        views[slot] = flat.as_strided(parameter.shape, parameter.stride()) if dense else flat.view(parameter.shape)
        start += parameter.numel()
    return views
