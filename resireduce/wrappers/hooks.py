"""What the hooks of DistributedDataParallel and of FSDP2 have in common."""

import gc
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from resireduce.core.bucket import Bucket, Slot, in_buckets
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Payload
from resireduce.core.step import GATHERED, UnderWay
from resireduce.errors import UsageError, check_count, warn
from resireduce.watchers import Resumed

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
        self._resumed = Resumed(feedback.residual)

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
        self._resumed.note_residuals()
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

    def _look_around(self, parameters: Iterable[Tensor]) -> None:
        """Before averages are used: warn of a GradScaler, and watch the states of optimizers of `parameters`."""
        if any(one.is_enabled() and one._scale is not None for one in objects(torch.amp.GradScaler)):
            warn(SCALED)
        own = {id(one) for one in parameters}
        for one in objects(torch.optim.Optimizer):
            groups = vars(one).get("param_groups") or ()  # one that passes on another's has none of its own
            if any(id(parameter) in own for group in groups for parameter in group["params"]):
                self._resumed.watch(one)


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
        self._under_way = UnderWay(feedback, sum(slot.nbytes for slot in slots) // GATHERED)
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


# --- Mistakes around a wrapper's hook, looked for when it is first called: GradScaler, and forgotten residuals ---


SCALED = (
    "a GradScaler has scaled the loss: residuals hold scaled errors, which are added to gradients of another scale "
    "whenever it changes, and an overflow ends training. Use bfloat16, which needs no scaling, or "
    "resireduce.distribute(..., grad_scaler=resireduce.GradScaler(...)) without the wrapper"
)


def objects(kind: type) -> list[Any]:
    """Return all objects of class `kind`, written in Python, in this process. They are found as those that refer to it:
    a list of all objects would also hold tuples that other threads are still filling."""
    kinds = {kind}
    left = [kind]
    while left:
        more: set[type] = set(type.__subclasses__(left.pop())) - kinds
        kinds |= more
        left += more
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]
