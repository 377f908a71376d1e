"""One parameter's way through a step."""

from dataclasses import dataclass

from torch import nn

from resireduce.error_feedback import Message
from resireduce.errors import UsageError
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
    present: bool = False
    """Whether this rank has taken a gradient of it in this step."""
    payload: Payload | None = None
    """This rank's message, from its compression to its launch."""
    message: Message | None = None
    """The message under way, from its launch to its receipt."""
    version: int | None = None
    """torch's count of the changes to a kept `.grad`, when the library last touched it."""

    @property
    def nbytes(self) -> int:
        """Bytes of its dense gradient."""
        return self.parameter.nbytes

    def seal(self) -> None:
        """Remember the state of a kept `.grad`: from now on only the library may change it."""
        self.version = None if self.parameter.grad is None else self.parameter.grad._version

    def check_seal(self) -> None:
        """Raise UsageError if somebody else has changed or dropped `.grad` since `seal`."""
        grad = self.parameter.grad
        if self.version is not None and (grad is None or grad._version != self.version):
            raise UsageError(
                f"the gradient of {self.name!r} was changed between backward() and step(), when it was already under "
                "way: that would have no effect. Scale the loss instead, or change gradients within optimizer.no_sync()"
            )
