"""The parts of a step as options ask for them; those of a plain step are in `core/step.py` and `core/update.py`."""

import math
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from resireduce.comm.local import LocalCommunicator
from resireduce.comm.nodes import Levels
from resireduce.core.bucket import Bucket, Slot, Stage, clip_factor, scale_, separate
from resireduce.core.feedback import ErrorFeedback, Finiteness, Sum
from resireduce.core.messages import Message, Payload, Round, Summed
from resireduce.core.step import Exchange, Flat, LaunchQueue, Skipped, Streamed, UnderWay, Unscaled
from resireduce.core.update import Updater
from resireduce.errors import NonFiniteGradient, UsageError, warn
from resireduce.guard import WAS_DROPPED
from resireduce.kernels.ops import is_finite
from resireduce.node import ByNodes
from resireduce.settings import Settings
from resireduce.watchers import Drift, refuse_fork

# --- What becomes of gradients: kept until `step()`, or their averages used in the backward pass ---


class Kept(Streamed):
    """This rank's own gradients stay in `.grad` until `step()`, which takes all of them; averages replace them there.

    Each rank's whole gradient is first limited to the norm `largest`, unless that is None. `others` are parameters of
    the model that somebody else updates; they are held weakly.
    """

    def __init__(self, scaling: Unscaled, largest: float | None, others: Iterable[Tensor]):
        super().__init__(scaling, math.inf)
        self._largest, self._others = largest, [weakref.ref(other) for other in others]
        self._is_prepared = False

    def owned(self, slot: Slot) -> Tensor:
        """Return what is in `.grad` of `slot`, unscaled: a copy, if it was put there by hand."""
        return slot.grad if self._is_prepared else self.scaling.unscale_(slot.own())

    def took(self, slot: Slot) -> None:
        """Leave the gradient in `.grad`."""

    def pending(self, exchange: Exchange) -> list[Slot]:
        """Return the slots with a gradient, unscaled and clipped: last first. Skipped, if that of a rank overflowed."""
        separate(exchange.slots, [other for ref in self._others if (other := ref()) is not None])
        pending = [slot for slot in reversed(exchange.slots) if slot.parameter.grad is not None]
        if self._largest is None and not self.scaling.skips:
            return pending
        norms = {}
        self._is_prepared = False
        for slot in pending:
            grad = self.owned(slot)
            try:
                exchange.feedback.finiteness.check_(grad, slot.name)
                norms[slot] = torch.linalg.vector_norm(grad)
            except NonFiniteGradient as error:
                exchange.drop(slot, error)
        if self._largest is not None:
            _, factor = clip_factor(list(reversed(norms.values())), self._largest)
            scale_(norms, factor)
        self._is_prepared = True
        if self.scaling.skips:  # no message is under way yet, so all ranks ask at the same point
            world = exchange.queue.world
            count = torch.tensor([int(exchange.queue.is_spoilt())], device=world.control_device)
            if world.all_reduce(count, "resireduce.overflow").wait():
                raise Skipped
        return [*norms]

    def room(self, slot: Slot, message: Message, place: int) -> Tensor:
        """Return the gradient itself, if there is one, which the average replaces."""
        own = slot.parameter.grad
        return super().room(slot, message, place) if own is None or not own.is_contiguous() else own

    def deliver(self, slot: Slot, average: Tensor) -> None:
        """Have the `average` in `.grad`, in the memory of the gradient if there is one."""
        own = slot.parameter.grad
        if own is None:
            super().deliver(slot, average)
        elif own is not average:
            own.copy_(average)

    def free(self, used: Sequence[Slot]) -> None:
        """Leave averages in `.grad`."""


class Early(Streamed):
    """Averages are used within the backward pass, once payloads take more bytes than a chunk; guards stand after it."""

    _bytes = 0
    """Bytes of dense payloads between their arrival and their update."""

    def took(self, slot: Slot) -> None:
        """Clear `.grad`, for the average: guards would have to be put aside for each update."""
        slot.parameter.grad = None

    def use_early(self, slot: Slot, updater: Updater) -> None:
        """Update by averages once payloads exceed a chunk; that of `slot` has just come."""
        self._bytes += slot.nbytes
        while self._bytes > self.chunk_bytes and updater.queue.under_way:
            for one in updater.queue.under_way[0].slots:  # of an earlier pass
                if one.stage is Stage.GUARDED:
                    one.uncover()
            slots = updater.queue.receive()
            updater.note(slots)
            aside = [(one.parameter, one.parameter.grad) for one in updater.queue.slots if one not in slots]
            for parameter, _ in aside:  # which wait for another pass
                parameter.grad = None
            updater.update_some()
            for parameter, grad in aside:
                parameter.grad = grad
            self._bytes -= sum(one.nbytes for one in slots)

    def after_backward(self, slots: Sequence[Slot]) -> None:
        """Guard all that has been taken."""
        for slot in slots:
            if slot.stage is Stage.TAKEN:
                slot.hide()

    def pending(self, exchange: Exchange) -> list[Slot]:
        """Return the slots with a gradient, as ever. UsageError if what runs before a step has missed updates."""
        self._bytes = 0
        if not exchange.updater.can_be_sliced():
            raise UsageError(
                "a hook before the step was registered, or another step was put into the optimizer, which would not "
                "see what has been used: do that before resireduce.distribute(...), with update='in_step'"
            )
        return super().pending(exchange)


# --- Gradients of several backward passes, and residuals that come from the host before they are needed ---


class AddingUp:
    """Adds up streamed gradients of the backward passes of a step, and hands the sums to the `exchange` after the last.

    Residuals absorb those of earlier passes, if they can; others stay in `.grad`.
    """

    def __init__(self, exchange: Exchange, last: float):
        self._exchange = exchange
        self.last = last
        """Number of the backward pass of a step that is the last; infinity: gradients are only added up."""

    def expect(self, slot: Slot) -> None:
        """Prepare for a gradient of `slot`, which autograd is about to add to `.grad`, from which what the residual has
        absorbed is cleared. UsageError, if there is something else."""
        if slot.stage is Stage.ABSORBED:
            self._refuse_dropped(slot)
            slot.parameter.grad = None
        elif slot.stage is not Stage.OPEN or not slot.passes:
            self._exchange.expect(slot)

    def has_gone(self, slot: Slot) -> bool:
        """Whether autograd has left no gradient. What the residual has absorbed of earlier passes stays there."""
        if slot.stage is not Stage.ABSORBED:
            return self._exchange.has_gone(slot)
        if slot.parameter.grad is not None or slot.parameter.requires_grad:
            return False
        slot.hide()
        return True

    def gradient(self, slot: Slot) -> None:
        """Take what autograd has added to the `.grad` of `slot` after the last pass, and before that absorb it."""
        slot.passes += 1
        if slot.passes < self.last:
            self._hold(slot)
            return
        if slot.parameter.grad is None:
            raise UsageError(WAS_DROPPED.format(name=slot.name))
        slot.stage = Stage.OPEN
        self._exchange.gradient(slot)

    def _hold(self, slot: Slot) -> None:
        """Have the residual absorb the gradient of a pass before the last; one that is not finite is left out."""
        slot.note_made()
        feedback = self._exchange.feedback
        if slot.parameter.grad is None or slot.slices is not None or not feedback.absorbs(slot.name):
            return
        slot.check_kind()
        try:
            feedback.absorb(self._exchange.lifetime.owned(slot), slot.name)
        except NonFiniteGradient as error:
            self._exchange.drop(slot, error)
        slot.stage = Stage.ABSORBED
        slot.hide()

    def finish(self) -> None:
        """Before a step: take what passes have brought that no last one followed. UsageError, if that is not there.

        What a residual has absorbed is sent as it is sent after the last pass, by a gradient of zeros.
        """
        left = [slot for slot in reversed(self._exchange.slots) if slot.passes]
        for slot in left:
            if slot.stage is Stage.ABSORBED or (slot.stage is Stage.OPEN and slot.parameter.grad is None):
                slot.check_kind()
                self._refuse_dropped(slot)
        self._exchange.failed = True  # if anything ends it half-way
        for slot in left:
            if slot.stage is Stage.ABSORBED:
                slot.stage, slot.parameter.grad = Stage.OPEN, torch.zeros_like(slot.parameter)
                slot.note_made()
                self._exchange.take(slot)
        self._exchange.failed = False

    def _refuse_dropped(self, slot: Slot) -> None:
        if not slot.is_guarded:
            raise UsageError(WAS_DROPPED.format(name=slot.name))


class Prefetching(Exchange):
    """Has the residual of the next gradient copied from the host's memory when a gradient has come."""

    _buckets: list[Bucket] | None = None

    def gradient(self, slot: Slot) -> None:
        """Start copying what is needed after the residual of `slot`, and take its gradient."""
        if self._buckets is not self.queue.buckets:  # at the start, and when the order has been learnt
            self._buckets, keeps = self.queue.buckets, self.feedback.keeps_residual
            slots = [one for bucket in self._buckets for one in bucket.slots if keeps(one.name)]
            self._next = dict(pairwise(slots))
        if slot in self._next:
            name = self._next[slot].name
            self.feedback.residual.of(name).prefetch(name)
        super().gradient(slot)


# --- Gradients that need not be looked at on a CPU, since what is taken of their sums tells ---


class SeenInSums(Finiteness):
    """Leaves it to the largest magnitudes of the sums of tensors `names` to tell whether their gradients were finite.

    NaN and infinity are among these, and residuals hold what they did until something is kept of the sum.
    """

    def __init__(self, names: frozenset[str]):
        super().__init__()
        self._names = names

    def check_arrived(self, grad: Tensor, name: str) -> None:
        """Do as `check` of `grad`, unless the sum of tensor `name` tells."""
        if name not in self._names:
            self.check(grad, name)

    def drop_(self, sums: Sequence[Sum], payloads: Sequence[Payload]) -> None:
        """Note which of a bucket's `sums` their `payloads` show not to be finite; send zeros of these, keep nothing."""
        for one, payload in zip(sums, payloads, strict=True):
            if one.name in self._names and not is_finite(payload.parts()[0]):
                self.noted.append(([one.name], torch.ones(1, device="cpu")))
                payload.buffer.zero_()
                one.is_there = False


# --- Messages that ranks make in rounds, or whose form depends on the number of the step ---


class InRounds(UnderWay):
    """The buckets under way, where ranks make some payloads in rounds."""

    def end_rounds(self, scaling: Unscaled) -> None:
        """Make these payloads: each round for all tensors in the same order."""
        while waiting := [(bucket, made) for bucket in self if isinstance(made := bucket.message, Round)]:
            for bucket, made in waiting:
                bucket.message = self.feedback.end_round(made)
                scaling.remember(bucket)
                self.feedback.send(bucket.message)


def under_way(feedback: ErrorFeedback, slots: Sequence[Slot]) -> UnderWay:
    """Return what holds the buckets of `slots` whose messages are under way, sent by `feedback`."""
    return (InRounds if hasattr(feedback.compressor, "agree") else UnderWay)(feedback, slots)


class Varying(LaunchQueue):
    """Launches nothing before the end of the first step, in which ranks compare its number: messages depend on it."""

    _is_compared = False

    def launch(self, step: int, complete: bool = False) -> None:
        """Launch what is ready, as ever. Raises UsageError, on all ranks, if they number the step differently."""
        if complete and not self._is_compared:
            self.sums([], step)
            self._is_compared = True
        if self._is_compared:
            super().launch(step, complete)


# --- Updates that wait for all averages, as with a limit on their norm, and a loss that is scaled ---


class MeasuringUpdater(Updater):
    """Updates nothing before all averages have been received, and their norm is known to be finite, or is limited.

    Until then averages that will be used in chunks are freed again; their messages are kept, and decompressed a second
    time.
    """

    def finish(self, step: int) -> None:
        """Receive everything under way, and update by that, as ever."""
        self._norms: dict[Slot, Tensor] = {}
        super().finish(step)
        self._norms.clear()

    def note(self, slots: Sequence[Slot]) -> None:
        """Note the norms of the averages of `slots`, which have come."""
        self._norms.update((slot, torch.linalg.vector_norm(slot.parameter.grad)) for slot in slots)
        if self.room == math.inf:
            super().note(slots)
        else:
            self.lifetime.free(slots)

    def update_rest(self) -> None:
        """Update by the averages that were measured, scaled to the global norm that clip_grad_norm_ would give."""
        norms = dict(sorted(self._norms.items(), key=lambda item: item[0].index))
        if self.largest is not None:
            self.grad_norm, factor = clip_factor([*norms.values()], self.largest)
        for bucket in {self.queue.bucket_of[slot]: None for slot in norms}:
            slots = [slot for slot in bucket.slots if slot in norms]
            if self.room < math.inf:
                self.make_room(slots)
                self.queue.deliver(slots)
                self._updating += slots
            if self.largest not in (None, math.inf):
                scale_(slots, factor)
            bucket.message = None
        super().update_rest()


class Scaling(Unscaled):
    """Gradients are divided by the scale of a GradScaler, and a step in which one of any rank overflows is skipped.

    Of streamed gradients a copy of what is sent is kept, and put back into residuals by such a step.
    """

    skips = True

    def __init__(self, settings: Settings, feedback: ErrorFeedback):
        self._settings, self._feedback = settings, feedback

    def unscale_(self, grad: Tensor) -> Tensor:
        """Divide `grad` by the scale of the loss, in place, and return it."""
        return grad.mul_(self._settings.scaler.inverse_scale())  # type: ignore[union-attr]

    def remember(self, bucket: Bucket) -> None:
        """Keep what is about to be sent: unless it is gathered, a copy, since ranks' messages are summed in place."""
        message = bucket.message
        if not self._settings.streamed or not isinstance(message, Message):
            return
        for slot, payload in zip(bucket.slots, message.payloads, strict=True):
            if slot.is_taken and not self._feedback.compressor_of(slot.name).lossless:
                slot.sent = payload.holding(payload.buffer.clone()) if isinstance(message, Summed) else payload

    def refuse(self, arrived: Sequence[Slot], step: int, error: NonFiniteGradient | None) -> None:
        """Put back what was sent of the slots `arrived`, and raise Skipped."""
        for slot in arrived:
            if slot.sent is not None:
                sent = self._feedback.compressor_of(slot.name).decompress(slot.sent)
                self._feedback.add_to_residual(sent, slot.name, step + 1)
        self._feedback.end_step(step + 1)  # another number: what was drawn for this step is drawn again
        raise Skipped


# --- The parts put together ---


def build_exchange(
    optimizer: torch.optim.Optimizer,
    slots: list[Slot],
    feedback: ErrorFeedback,
    settings: Settings,
    levels: Levels,
    others: Iterable[Tensor],
) -> Exchange:
    """Return what takes the steps of `slots` as `settings` say, over the ranks of `levels`, for `optimizer`; `others`
    are parameters of the model that it does not update."""
    layers: Counter[str] = Counter()  # tensors whose names differ only in the last part
    for slot in slots:
        layers[slot.name.rpartition(".")[0]] += slot.nbytes
    nbytes, largest, world = layers.total(), max(layers.values()), levels.world
    scaling = Unscaled() if settings.scaler is None else Scaling(settings, feedback)
    lifetime = (Early if settings.in_backward else Streamed)(scaling, largest)
    if not settings.streamed:
        lifetime = Kept(scaling, settings.max_local_grad_norm, others)
    held = largest if settings.streamed else nbytes
    route = Flat(feedback) if levels.node is None else ByNodes(slots, feedback, levels.node, held)
    seen = frozenset(slot.name for slot in slots if feedback.sees_non_finite(slot.name))
    if seen and levels.node is None and not scaling.skips:  # a step that is skipped leaves no trace in residuals
        feedback.finiteness = SeenInSums(seen)
    kind = Varying if feedback.varies and world.world_size > 1 else LaunchQueue
    queue = kind(under_way(feedback, slots), slots, world, route, lifetime, settings.merge)
    if world.world_size > 1 and not settings.in_backward:  # which updates some before the others are sent
        queue.comparisons.append(Drift(slot.parameter for slot in slots))
    measures = settings.max_grad_norm is not None or (settings.streamed and scaling.skips)
    updater = (MeasuringUpdater if measures else Updater)(optimizer, queue)
    updater.largest = settings.max_grad_norm
    if settings.streamed and not updater.is_separable():
        name = type(optimizer).__name__
        warn(
            f"{name} is not known to update each parameter by itself, so all averages, {nbytes / 2**20:,.1f} MiB, are "
            "held at once for its step(). If it does, say so by a class attribute step_is_separable = True in "
            f"{name}"
        )
    is_alone = isinstance(world, LocalCommunicator)  # and may be forked
    exchange = Exchange if settings.residual_device is None else Prefetching
    return exchange(queue, updater, bool if is_alone else partial(refuse_fork, os.getpid()))
