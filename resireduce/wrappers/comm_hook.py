"""Compression of DistributedDataParallel's buckets, in its communication hook."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.futures import Future

from resireduce.core.feedback import ErrorFeedback
from resireduce.core.queue import refuse_partly_absent
from resireduce.core.slot import Slot, Stage, accumulation_node, make_slots
from resireduce.errors import UsageError
from resireduce.start import STEP, agree
from resireduce.watchers import Outside
from resireduce.wrappers.hooks import WATCHED, FirstSteps, HookState, UnderWay

# --- What earlier passes have left in `.grad` of a tensor that this rank does not use in the current one ---
#
# DistributedDataParallel hands it over again. If no rank uses the tensor, it stays where it was. Without a hook it
# would be averaged with the others' gradients, but here compressed averages have been taken from it already.


class Earlier:
    """Puts aside what earlier passes have left, for the time of an exchange."""

    def __init__(self) -> None:
        self._aside: list[tuple[Slot, Tensor, Tensor]] = []  # where the average comes, and what was there

    def put_aside(self, slot: Slot, place: Tensor) -> None:
        """Remember the values in `place`, which will receive an average of the parameter of `slot`."""
        self._aside.append((slot, place, place.clone()))

    def put_back(self) -> None:
        """Put all back, once averages have come.

        Raises UsageError if another rank has used such a tensor: this rank's gradient should have been sent with the
        others'.
        """
        for slot, place, left in self._aside:
            if place.any():
                raise UsageError(
                    f"{slot.name!r} was not used in this pass on this rank, where .grad holds an earlier gradient of "
                    "it, but it was on others: it cannot be averaged with theirs any more. Accumulate within "
                    "model.no_sync(), and call zero_grad() after each step"
                )
            place.copy_(left)


# --- How gradients lie in the buckets of DistributedDataParallel: as their parameters did when it was made ---


LAID_OUT = (
    "{name!r} was laid out anew in memory after DistributedDataParallel(...), which then mixes up the elements of its "
    "gradient, with or without compression: give the model its layout, as by to(memory_format=torch.channels_last), "
    "before it is wrapped"
)


class Layouts:
    """Looks whether gradients lie in their buckets as their parameters do in memory.

    A bucket does not tell how it is laid out, so that values are compared, in the first pass that has a gradient.
    """

    def __init__(self) -> None:
        self._strides: dict[Slot, tuple[int, ...]] = {}

    def check(self, views: Mapping[Slot, Tensor]) -> None:
        """Raise UsageError if one of `views`, in which a bucket was cut by the strides of parameters, is no gradient.

        A parameter whose strides have changed since an earlier pass is refused, whatever its gradient is.
        """
        for slot, view in views.items():
            strides, grad = slot.parameter.stride(), slot.parameter.grad
            known = self._strides.get(slot)
            if known == strides or grad is None or not slot.is_taken:
                continue
            if known is not None or _in_another_order(view, grad):
                raise UsageError(LAID_OUT.format(name=slot.name))
            self._strides[slot] = strides


def views_in(buffer: Tensor, slots: Sequence[Slot]) -> dict[Slot, Tensor]:
    """Return the gradient of each of `slots` in the flat `buffer` of a bucket.

    It is laid out as by the wrapper: like its parameter, if that has no gaps.
    """
    views, start = {}, 0
    for slot in slots:
        parameter = slot.parameter
        flat = buffer[start : start + parameter.numel()]
        # Strides survive empty_like only if the tensor has neither gaps nor overlaps.
        dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        views[slot] = flat.as_strided(parameter.shape, parameter.stride()) if dense else flat.view(parameter.shape)
        start += parameter.numel()
    return views


def _in_another_order(view: Tensor, grad: Tensor) -> bool:
    """Whether `view` holds the elements of `grad` at other places; other elements are no matter of layout."""
    return _differ(view, grad) and not _differ(view.flatten().sort()[0], grad.flatten().sort()[0])


def _differ(some: Tensor, others: Tensor) -> bool:
    """Whether an element differs that is not NaN."""
    return not bool(((some == others) | others.isnan()).all())


# --- The communication hook of DistributedDataParallel: what happens to one bucket of gradients ---


CONVERTED = (
    "{name!r} was converted or moved after {before}, and DistributedDataParallel averages it no longer, with or "
    "without compression: each rank has its own gradient. Convert or move the model (double(), to()) before it is "
    "wrapped"
)


class CompressionHook(HookState):
    """Made by `compress_ddp`: holds this rank's residuals, and the messages under way within one backward pass.

    Messages leave in the order of the buckets, which is the same on all ranks, over the wrapper's own process group.
    Gathered ones take world size x payload bytes each: beyond a sixteenth of all gradients the oldest are received,
    within the backward pass, before the next is launched. The others are received when the last bucket comes.

    Args:
        parameters: all parameters whose gradients the wrapper averages, by name, in the order of the model.
        feedback: compresses gradients, and holds their residuals.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], feedback: ErrorFeedback):
        super().__init__(feedback)
        self.refuse: Callable[[], object] = bool  # does nothing
        """Is called before each bucket, and raises UsageError for what the wrapper cannot do with a hook."""
        self.outside: Outside | None = None
        """Warns, at the end of a pass, of parameters that the wrapper does not know."""
        self.slots = make_slots(parameters, feedback)
        self._slot_of: dict[Tensor, Slot] = {slot.parameter: slot for slot in self.slots}
        self._under_way = UnderWay(feedback, sum(slot.nbytes for slot in self.slots) // 16)
        self._unseen, self._is_known = {*self.slots}, False
        by_size = sorted(self.slots, key=lambda slot: slot.nbytes)
        self._watched = by_size[:WATCHED]
        self._first_steps = FirstSteps([partial(getattr, slot, "parameter") for slot in by_size])
        self._nodes = [accumulation_node(slot.parameter) for slot in self.slots]
        self._layouts = Layouts()
        self._restart()
        for slot in self.slots:
            feedback.register(slot.name, slot.parameter)
            slot.parameter.register_post_accumulate_grad_hook(partial(_mark_present, weakref.ref(self), slot.index))
        for slot in self._watched:
            self._first_steps.watch(slot.parameter)

    def _restart(self) -> None:
        self._under_way.drop()
        self._results: list[tuple[Future[Tensor], Tensor]] = []
        self._earlier = Earlier()
        self.feedback.begin_step(self.steps)
        for slot in self.slots:
            slot.restart()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raise UsageError: a copy of the wrapper would have no hook."""
        raise UsageError(
            "a DistributedDataParallel with resireduce.compress_ddp(...) cannot be copied or pickled, since the copy "
            "would not compress. Copy the model within, as in AveragedModel(model.module), or save its state_dict() "
            "and the residual_state_dict() of each rank"
        )

    @property
    def _is_within_pass(self) -> bool:
        return bool(self._results)

    @torch.no_grad()
    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Launch the messages of a `bucket`, whose memory receives the averages; the last bucket completes the futures.

        Raises NonFiniteGradient, which names the parameter, if a gradient holds NaN or infinity; UsageError for sparse
        gradients, and for unknown parameters; ConfigError, in the first pass, if ranks go on from different steps. The
        wrapper refuses to go on after a step that has failed.
        """
        if not self._is_known:
            agree({STEP: str(self.steps)}, self.feedback.communicator)
            self._is_known = True
        slots, buffer = self._slots_of(bucket), bucket.buffer()
        views = views_in(buffer, slots)
        self._layouts.check(views)
        self._under_way.send(views, buffer, self._take, self.steps)
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
        self._unseen.difference_update(known)
        if bucket.buffer().layout != torch.strided:
            raise UsageError(f"the gradient of {known[0].name!r} is sparse: make its layer with sparse=False")
        return known

    def _take(self, slot: Slot, grad: Tensor) -> Tensor | None:
        """Return what is to be compressed of a gradient; None if this rank has none in this pass.

        Then it sends zeros; what an earlier pass has left in `.grad` is put aside, and put back if no rank has a
        gradient. What can be left unsent is copied: a group's residual may hold an error until its turn comes, and the
        bucket receives averages before that.
        """
        leaves = self.feedback.leaves_residual(slot.name)
        if not slot.is_taken:
            is_left = slot.parameter.grad is not None and bool(grad.any())
            if leaves and is_left:
                self._earlier.put_aside(slot, grad)
            if leaves or not is_left:  # what is sent dense is averaged anew, as without a hook
                grad.zero_()
                return None
        return grad.clone(memory_format=torch.contiguous_format) if leaves else grad.contiguous()

    def mark_present(self, slot: Slot) -> None:
        """Note that this rank has a gradient of `slot`, from this pass or from an earlier one within `no_sync()`.

        UsageError if the wrapper knows nothing of it.
        """
        if accumulation_node(slot.parameter) is not self._nodes[slot.index]:
            raise UsageError(CONVERTED.format(name=slot.name, before="resireduce.compress_ddp(...)"))
        if not slot.is_taken:
            slot.go(Stage.TAKEN)

    def _finish(self) -> None:
        if self._unseen:
            first = min(self._unseen, key=lambda slot: slot.index)
            raise UsageError(
                f"{first.name!r} is in no bucket: it was unfrozen between DistributedDataParallel(...) and "
                "resireduce.compress_ddp(...), and nobody averages it: unfreeze before the model is wrapped"
            )
        in_pass = torch._C._current_graph_task_id() >= 0  # not where join() lets ranks go on
        if self.outside is not None and in_pass:  # which may go on after the last bucket
            Variable._execution_engine.queue_callback(self.outside.warn)
        self._under_way.end_rounds()
        self.feedback.residual.end_step(self.steps)
        self.steps += 1
        self._under_way.receive_all()
        self._earlier.put_back()
        self._consider_absent()
        self.feedback.states.commit()
        for future, buffer in self._results:
            future.set_result(buffer)
        self._first_steps.end([slot.is_taken for slot in self._watched], self._has_new_residuals())
        self._restart()

    def _consider_absent(self) -> None:
        """Leave the compressor's state of a tensor as it was if no rank had a gradient: all have sent zeros.

        Raises UsageError if momentum is corrected and only some ranks had a gradient.
        """
        learning = [slot for slot in self.slots if self.feedback.learns(slot.name)]
        if not learning and self.feedback.momentum is None:
            return
        ranks = self.feedback.communicator
        here = torch.tensor([int(slot.is_taken) for slot in self.slots], device=ranks.control_device)
        present: list[int] = ranks.all_reduce(here, "resireduce.presence").wait().tolist()
        if self.feedback.momentum is not None:
            refuse_partly_absent(self.slots, present, ranks.world_size)
        for slot in learning:
            if not present[slot.index]:
                self.feedback.states.keep(slot.name)


@torch.compiler.disable
def _mark_present(place: weakref.ref[CompressionHook], index: int, _: Tensor) -> None:
    if (hook := place()) is not None:
        hook.mark_present(hook.slots[index])
