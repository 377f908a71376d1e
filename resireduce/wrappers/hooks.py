"""What the hooks of DistributedDataParallel and of FSDP2 have in common."""

import gc
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.core.bucket import Bucket, Slot, in_buckets, make_slots
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Payload
from resireduce.core.optimizer import Resumable
from resireduce.core.step import UnderWay
from resireduce.errors import UsageError, warn
from resireduce.start import STEP, agree
from resireduce.watchers import Resumed


class HookState(Resumable, ABC):
    """The common base of the hooks of wrappers, which want their gradients back before `backward()` returns.

    Messages of gradients that come together are launched together. Beyond a sixteenth of all gradients the oldest are
    received before the next is launched, as `UnderWay` says. Residuals are saved and loaded between backward passes.

    Its `feedback` compresses gradients like `parameters`, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], feedback: ErrorFeedback):
        self.feedback, self.slots = feedback, make_slots(parameters, feedback)
        self._under_way = UnderWay(feedback, self.slots)
        self._targets: deque[Sequence[Tensor]] = deque()  # where the averages of each message belong
        self.resumed, self._is_known = Resumed(feedback.residual), False
        self.steps = 0
        """How many backward passes have averaged gradients."""
        feedback.begin_step(0)

    @property
    @abstractmethod
    def _is_within_pass(self) -> bool:
        """Whether a backward pass is under way, or has failed half-way."""

    def _refuse_within_step(self, what: str) -> None:
        if self._is_within_pass:
            raise UsageError(
                f"{what} within a backward pass, or after one that failed half-way: some residuals are of this pass, "
                "and others of the last; call it when backward() has returned, or start from a checkpoint"
            )

    def _look_around(
        self, parameters: Iterable[Tensor], values: Mapping[str, str], beside: Communicator | None = None
    ) -> None:
        """Before the first gradients of `parameters` are sent: raise ConfigError on all ranks, also those `beside`, if
        they go on from other steps or with other `values`; warn of a GradScaler; and watch the states of optimizers."""
        agree({**values, STEP: str(self.steps)}, self.feedback.communicator, beside=beside)
        if any(one.is_enabled() and one._scale is not None for one in objects(torch.amp.GradScaler)):
            warn(
                "a GradScaler has scaled the loss: residuals hold scaled errors, which are added to gradients of "
                "another scale whenever it changes, and an overflow ends training. Use bfloat16, which needs no "
                "scaling, or resireduce.distribute(..., grad_scaler=resireduce.GradScaler(...)) without the wrapper"
            )
        own = {id(one) for one in parameters}
        for one in objects(torch.optim.Optimizer):
            groups = vars(one).get("param_groups") or ()  # one that passes on another's has none of its own
            if any(id(parameter) in own for group in groups for parameter in group["params"]):
                self.resumed.watch(one)
        self._is_known = True

    def _take(self, slot: Slot, grad: Tensor) -> Tensor | None:
        """Return what is to be compressed of a gradient; None: this rank has none."""
        if not self.feedback.leaves_residual(slot.name):
            return grad.contiguous()
        # A group's residual may hold an error until its turn comes, and averages come into this memory before.
        return grad.clone(memory_format=torch.contiguous_format)

    def _send(self, views: Mapping[Slot, Tensor], whole: Tensor) -> None:
        """Launch the messages of gradients, given as `views` of the `whole` that the wrapper holds, which receive the
        averages. If nothing can be left unsent, `whole` is summed by one all-reduce in its own memory, as without a
        hook."""
        slots = sorted(views, key=lambda slot: -slot.index)  # last to first, as groups of residuals want them
        if slots and not any(self.feedback.leaves_residual(slot.name) for slot in slots):
            for slot in slots:  # looks for NaN, and corrects momentum, in the memory of `whole`
                self.feedback.compress({slot.name: self._take(slot, views[slot])}, self.steps)
            dense = self.feedback.compressor_of(slots[0].name)
            message = dense.message([slots[0].name], [Payload.pack(whole, like=whole)])
            self._launch(Bucket(slots, message), [whole])
            return
        for bucket in in_buckets(slots, None, self.feedback):
            gradients = {slot.name: self._take(slot, views[slot]) for slot in bucket.slots}
            bucket.message = self.feedback.compress(gradients, self.steps)
            self._launch(bucket, [views[slot] for slot in bucket.slots])

    def _launch(self, bucket: Bucket, targets: Sequence[Tensor]) -> None:
        while not self._under_way.has_room(bucket):
            self._receive()
        self._under_way.launch(bucket)
        self._targets.append(targets)

    def _receive(self) -> None:
        bucket, targets = self._under_way.popleft(), self._targets.popleft()
        assert isinstance(bucket.message, Message)
        into = [target if target.is_contiguous() else None for target in targets]
        averages = self.feedback.receive(bucket.message, range(len(into)), into)
        for target, average in zip(targets, averages, strict=True):
            if average is not target:
                target.copy_(average)

    def _receive_all(self) -> None:
        """Receive all averages, after the rounds in which ranks make payloads."""
        self._under_way.end_rounds()
        while self._targets:
            self._receive()

    def _end_step(self) -> None:
        """End a step, whose averages have been received, and begin the next."""
        self.feedback.end_step(self.steps)
        self.feedback.states.commit()
        self.resumed.after_step()
        self.steps += 1
        self.feedback.begin_step(self.steps)


def objects(kind: type) -> list[Any]:
    """Return all objects of class `kind`, written in Python, in this process. They are found as those that refer to it:
    a list of all objects would also hold tuples that other threads are still filling."""
    kinds = [kind]
    for one in kinds:
        kinds += type.__subclasses__(one)  # whose own are looked for in turn
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]
