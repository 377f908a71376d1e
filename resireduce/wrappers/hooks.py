"""What the hooks of DistributedDataParallel and of FSDP2 have in common."""

import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resireduce.core.bucket import Bucket, Slot, in_buckets
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Payload
from resireduce.core.step import UnderWay
from resireduce.errors import UsageError, check_count, warn
from resireduce.residuals.base import Residuals
from resireduce.watchers import Resumed, after_steps, objects

# --- What the hook of a wrapper saves and loads: this rank's residuals, and the step number ---


WITHIN = (
    "{what} within a backward pass, or after one that failed half-way: some residuals are of this pass, and others of "
    "the last; call it when backward() has returned, or start from a checkpoint"
)


class HookState(ABC):
    """The common base of the hooks of wrappers: residuals are saved and loaded between two backward passes."""

    def __init__(self, feedback: ErrorFeedback):
        self.feedback = feedback
        self.steps = 0
        """How many backward passes have averaged gradients."""
        self._is_resumed = False  # whether residuals were loaded, or a step was named, since the last exchange

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals. They differ between ranks: save one file per rank.

        Raises UsageError within a backward pass, which has updated only some of them.
        """
        self._refuse_within_pass("residual_state_dict()")
        return self.feedback.state_dict(self.steps)

    def load_residual_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the `state` that this rank saved in a job of the same size: its residuals, and the step number.

        Raises ConfigError if they belong to another model, scheme or residual_dtype, and UsageError within a backward
        pass.
        """
        self._refuse_within_pass("load_residual_state_dict()")
        self.start_at(self.feedback.load_state_dict(state))

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0. Raises UsageError within a backward pass."""
        check_count("step", step, of="steps")
        self._refuse_within_pass("start_at()")
        self._is_resumed = True
        self._begin_step(step)

    @property
    @abstractmethod
    def _is_within_pass(self) -> bool:
        """Whether a backward pass is under way, or has failed half-way."""

    def _begin_step(self, step: int) -> None:
        self.steps = step
        self.feedback.begin_step(step)

    def _refuse_within_pass(self, what: str) -> None:
        if self._is_within_pass:
            raise UsageError(WITHIN.format(what=what))

    def _takes_resumed(self) -> bool:
        """At the end of an exchange: whether residuals were loaded, or a step was named, since the last one."""
        is_resumed, self._is_resumed = self._is_resumed, False
        return is_resumed


# --- Messages under way for a hook of a wrapper, which wants its gradients back before `backward()` returns ---


Take = Callable[[Slot, Tensor], Tensor | None]
"""Returns what is to be compressed of a gradient: a copy of it, or itself; None: this rank has none."""


class Messages:
    """The messages of a hook: those of a part of the gradients are launched together, and their averages put there.

    Beyond a sixteenth of the gradients of all `slots` the oldest are received before the next is launched, as
    `UnderWay` says. `feedback` makes and receives them.
    """

    def __init__(self, feedback: ErrorFeedback, slots: Sequence[Slot]):
        self._feedback = feedback
        self._under_way = UnderWay(feedback, slots)
        self.drop()

    def drop(self) -> None:
        """Forget all messages."""
        self._under_way.drop()
        self._targets: deque[Sequence[Tensor]] = deque()  # where the averages of each belong

    def send(self, views: Mapping[Slot, Tensor], whole: Tensor, take: Take, step: int) -> None:
        """Launch the messages of gradients of `step`, given as `views` of the `whole` that the wrapper holds.

        `take` returns what is to be compressed of each; its average goes into its view. If nothing can be left unsent,
        `whole` is summed by one all-reduce in its own memory, as without a hook.
        """
        slots = sorted(views, key=lambda slot: -slot.index)  # last to first, as groups of residuals want them
        if slots and not any(self._feedback.leaves_residual(slot.name) for slot in slots):
            for slot in slots:  # looks for NaN, and corrects momentum, in the memory of `whole`
                self._feedback.compress({slot.name: take(slot, views[slot])}, step)
            dense = self._feedback.compressor_of(slots[0].name)
            message = Message.of([slots[0].name], dense, [Payload.pack(whole, like=whole)])
            self._launch(Bucket(slots, message), [whole])
            return
        for bucket in in_buckets(slots, None, self._feedback):
            gradients = {slot.name: take(slot, views[slot]) for slot in bucket.slots}
            bucket.message = self._feedback.compress(gradients, step)
            self._launch(bucket, [views[slot] for slot in bucket.slots])

    def _launch(self, bucket: Bucket, targets: Sequence[Tensor]) -> None:
        while not self._under_way.has_room(bucket):
            self._receive()
        self._under_way.launch(bucket)
        self._targets.append(targets)

    def end_rounds(self) -> None:
        """Make the payloads that ranks make in rounds, of all tensors in the same order."""
        self._under_way.end_rounds()

    def receive_all(self) -> None:
        """Receive all averages, once rounds have ended."""
        while self._targets:
            self._receive()

    def _receive(self) -> None:
        bucket, targets = self._under_way.pop(), self._targets.popleft()
        assert isinstance(bucket.message, Message)
        into = [target if target.is_contiguous() else None for target in targets]
        for target, average in zip(targets, self._feedback.receive(bucket.message, None, into), strict=True):
            if average is not target:
                target.copy_(average)


# --- Mistakes around a wrapper's hook, looked for in the first steps: dropped averages, GradScaler, forgotten residuals
# ---
#
# In plain training a gradient that is dropped has no effect. With error feedback its pass, perhaps one of another
# model, has left in residuals what was not sent, and later steps send it. So it is with a gradient by which
# parameters are only moved for a moment, to compute another one there, as by SAM.


LOOKS, TELLS, WATCHED, SHARE = 60, 3, 16, 0.25
"""LOOKS: exchanges that are looked at. TELLS: how many of them must have been dropped for a warning. WATCHED: how many
parameters show it. SHARE: the share of these that must show it, since some may have averages of zero."""
DROPPED = (
    "averages of a backward pass were dropped, by zero_grad(), and no step of an optimizer ended before, while "
    "residuals keep what was not sent of that pass, and send it later. If it was the pass of another model (of a GAN's "
    "generator through its discriminator), call requires_grad_(False) on this one for its time. A gradient that only "
    "probes, as by SAM or LBFGS, is one of other parameters: compute it within no_sync(), use an optimizer that takes "
    "a step from one gradient, or train without compression. Steps that you skip on purpose need no cure"
)


class FirstSteps:
    """Warns if averages were dropped several times before a step of an optimizer used them, if a GradScaler is used,
    and if an optimizer goes on from a checkpoint whose residuals were not loaded.

    `parameters` are functions that return what is exchanged, or this rank's shards of it, the smallest first.
    """

    def __init__(self, parameters: Sequence[Callable[[], Tensor]], residual: Residuals):
        self._parameters = tuple(parameters[:WATCHED])
        self._looks, self._dropped = LOOKS, 0
        self._exchanged: Sequence[bool] = ()
        self._has_stepped, self._is_used = False, False
        self._residual = residual
        self._resumed: list[Resumed] | None = None
        self._end_count = after_steps(self)

    def end(self, exchanged: Sequence[bool], is_resumed: bool) -> None:
        """At the end of an exchange: remember of which parameters something was `exchanged`. `is_resumed`: whether
        residuals were loaded since the last one."""
        for one in self._resumed or ():
            if is_resumed:
                one.note_residuals()
            one.after_step()
        if self._looks == LOOKS:
            _warn_of_scaler()
        if self._looks:
            self._looks -= 1
            self._exchanged = exchanged

    def watch(self, parameter: Tensor) -> None:
        """Have the next look taken before a gradient is added to the `.grad` of `parameter`."""
        parameter.register_hook(partial(_look, weakref.ref(self)))

    @torch.no_grad()
    def begin(self) -> None:
        """When the first gradient after an exchange is about to be added to `.grad`: warn if averages were dropped."""
        if self._resumed is None:  # before the first gradient, since one that is used at once fills optimizers' states
            # An optimizer that passes on another's groups has none of its own.
            held = [one for one in objects(torch.optim.Optimizer) if self._holds(vars(one).get("param_groups") or ())]
            self._resumed = [Resumed(one, self._residual) for one in held]
        exchanged, self._exchanged = self._exchanged, ()
        if not exchanged:
            return
        is_used, self._is_used = self._is_used, False
        if is_used or not self._has_stepped:
            return
        pairs = zip(self._parameters, exchanged, strict=False)
        gone = [one for one in (parameter() for parameter, was in pairs if was) if _is_gone(one.grad)]
        if len(gone) < SHARE * len(exchanged):
            return
        self._dropped += 1
        if self._dropped == TELLS:
            self._looks = 0
            self._end_count()
            warn(DROPPED)

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that a step of `optimizer` has ended, if it holds one of the parameters."""
        if self._holds(optimizer.param_groups):
            self._has_stepped = self._is_used = True

    def _holds(self, groups: Iterable[Mapping[str, Any]]) -> bool:
        own = {id(one()) for one in self._parameters}
        return any(id(one) in own for group in groups for one in group["params"])


def _is_gone(grad: Tensor | None) -> bool:
    return grad is None or not _local(grad).any()


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _warn_of_scaler() -> None:
    """Warn if a GradScaler of this process has scaled a loss."""
    if any(one.is_enabled() and one._scale is not None for one in objects(torch.amp.GradScaler)):
        warn(
            "a GradScaler has scaled the loss: residuals hold scaled errors, which are added to gradients of another "
            "scale whenever it changes, and an overflow ends training. Use bfloat16, which needs no scaling, or "
            "resireduce.distribute(..., grad_scaler=resireduce.GradScaler(...)) without the wrapper"
        )


@torch.compiler.disable
def _look(place: weakref.ref[FirstSteps], _: Tensor) -> None:
    """Before a gradient is added to `.grad`: look whether the last averages there were used."""
    if (first_steps := place()) is not None:
        first_steps.begin()
