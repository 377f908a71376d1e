"""One parameter's way through a step."""

from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from resireduce.error_feedback import ErrorFeedback, Message
from resireduce.errors import UsageError
from resireduce.grouping import is_small
from resireduce.payload import Payload


@dataclass(eq=False)
class Slot:
    """What is known, between two steps, of the gradient of one parameter."""

    index: int
    """Place among the trained parameters, in the order of the model."""
    name: str
    """As the model calls it."""
    parameter: nn.Parameter
    dense: bool
    """Whether its payload is the gradient itself, which is summed in place."""
    gathered: bool
    """Whether all ranks' payloads are received, instead of their sum."""
    small: bool
    """Whether it may share a message with others."""
    passes: int = 0
    """Backward passes since the last step."""
    complete: bool = False
    """Whether the last of them is over."""
    absorbed: bool = False
    """Whether the residual has absorbed the gradients of earlier passes."""
    dropped: bool = False
    """Whether its gradient held NaN or infinity."""
    present: bool = False
    """Whether this rank has taken a gradient of it in this step."""
    sent: Payload | None = None
    """With a GradScaler: a copy of what this rank sent, which goes back into the residual if the step is skipped."""
    payload: Payload | None = None
    """This rank's message, from its compression to its launch."""
    message: Message | None = None
    """The message under way, from its launch to its receipt."""
    version: int | None = None
    """torch's count of the changes to a kept `.grad`, when the library last touched it."""

    @classmethod
    def of(cls, index: int, name: str, parameter: nn.Parameter, feedback: ErrorFeedback) -> Self:
        """That of the model's parameter number `index`, whose gradients `feedback` compresses."""
        compressor = feedback.compressor_of(name)
        small = compressor.lossless and is_small(parameter)
        gathered = compressor.collective == "all_gather"
        return cls(index, name, parameter, dense=compressor.lossless, gathered=gathered, small=small)

    @property
    def nbytes(self) -> int:
        """Bytes of its dense gradient."""
        return self.parameter.nbytes

    def restart(self) -> None:
        """Forget the last step."""
        self.passes, self.version, self.sent = 0, None, None
        self.complete = self.absorbed = self.dropped = self.present = False

    def remember_sent(self, needed: bool) -> None:
        """Keep what is about to be sent, if `needed`: a copy where all ranks' messages are summed in its memory."""
        if needed and self.payload is not None:
            own = self.payload.buffer if self.gathered else self.payload.buffer.clone()
            self.sent = replace(self.payload, buffer=own)

    def seal(self) -> None:
        """Remember the state of a kept `.grad`: from now on only the library may change it."""
        self.version = None if self.parameter.grad is None else self.parameter.grad._version

    def check_seal(self) -> None:
        """Raise UsageError if somebody else has changed or dropped `.grad` since `seal`."""
        grad = self.parameter.grad
        if self.version is not None and (grad is None or grad._version != self.version):
            raise UsageError(
                f"the gradient of {self.name!r} was changed between backward() and step(), when it was already under "
                "way: that would have no effect. Scale the loss instead, or change gradients within optimizer.no_sync("
                "); and take the model out of DistributedDataParallel, if it is in one"
            )
