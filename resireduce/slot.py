"""One parameter's way through a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from resireduce.error_feedback import ErrorFeedback, Message
from resireduce.errors import UsageError
from resireduce.grouping import is_small
from resireduce.payload import Payload
from resireduce.streamed_away import SECOND_BACKWARD, StreamedAway, guards

DROPPED = (
    "the gradient of {name!r} was dropped between two backward passes of one step, or replaced when some of it was in "
    "the residual already: call zero_grad() only before the first pass, and change gradients only after the last"
)


@dataclass(eq=False)
class Slot:
    """What is known, between two steps, of the gradient of one parameter."""

    index: int
    """Place among the trained parameters, in the order of the model."""
    name: str
    """As the model calls it."""
    parameter: nn.Parameter
    dense: bool
    """Whether its payload is always the gradient itself, which is summed in place."""
    small: bool
    """Whether it may share a message with others."""
    guard: StreamedAway
    """Stands in `.grad` while the gradient is under way."""
    hidden: Tensor | None = None
    """Kept: the tensor in whose place the guard stands, which takes the average."""
    passes: int = 0
    """Backward passes since the last step."""
    complete: bool = False
    """Whether the last of them is over."""
    made: int | None = None
    """Where the gradient lies that autograd has left in `.grad` in this step. Another was put there by hand."""
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
    guarded: bool = False
    """Whether the guard was put into `.grad`, and should be there."""
    kind: tuple[torch.dtype, torch.device, tuple[int, ...]] = field(init=False)
    """Dtype, device and shape that its parameter had at the start."""

    def __post_init__(self) -> None:
        self.kind = self._kind()

    def _kind(self) -> tuple[torch.dtype, torch.device, tuple[int, ...]]:
        return self.parameter.dtype, self.parameter.device, tuple(self.parameter.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its dense gradient."""
        return self.parameter.nbytes

    @property
    def is_guarded(self) -> bool:
        """Whether the guard stands in `.grad`."""
        return self.parameter.grad is self.guard

    def restart(self) -> None:
        """Forget the last step."""
        if self.is_guarded:
            self.parameter.grad = None
        self.passes, self.made, self.sent, self.hidden, self.payload, self.message = 0, None, None, None, None, None
        self.complete = self.absorbed = self.dropped = self.present = self.guarded = False

    def hide(self, keep: bool = False) -> None:
        """Put the guard in the place of `.grad`, which is remembered if `keep`, and else let go."""
        self.hidden = self.parameter.grad if keep else None
        self.parameter.grad, self.guarded = self.guard, True

    def uncover(self) -> None:
        """Take the guard away. UsageError if somebody has put something else in its place, or has dropped it."""
        if not self.is_guarded:
            raise UsageError(
                f"the gradient of {self.name!r} was replaced, or dropped by model.zero_grad(), between backward() and "
                "step(), when it was already under way: that would have no effect. Scale the loss instead, "
                "or use gradients='kept' (without overlap=True); and take the "
                "model out of DistributedDataParallel, if it is in one"
            )
        self.parameter.grad, self.guarded = self.hidden, False

    def expect_another_pass(self) -> None:
        """A further backward pass is about to add to `.grad`: make room where the residual has absorbed the others."""
        if self.complete:
            raise UsageError(SECOND_BACKWARD.format(name=self.name))
        if self.absorbed:
            if not self.is_guarded:
                raise UsageError(DROPPED.format(name=self.name))
            self.parameter.grad = None

    def note_made(self) -> None:
        """Autograd has left a gradient in `.grad`."""
        grad = self.parameter.grad
        self.made = grad.data_ptr() if grad is not None and grad.layout == torch.strided else None

    def own(self, grad: Tensor) -> Tensor:
        """`grad`, to be overwritten: a copy, which takes its place, if it was put there by hand."""
        if grad.data_ptr() != self.made and not grad.is_meta:
            grad = self.parameter.grad = torch.empty_like(self.parameter, dtype=grad.dtype).detach_().copy_(grad)
        return grad

    def laid_out(self, average: Tensor) -> Tensor:
        """`average` in memory as the parameter lies there, which fused optimizers take for granted."""
        if average.stride() == self.parameter.stride():
            return average
        return torch.empty_like(self.parameter, dtype=average.dtype).detach_().copy_(average)

    def check_kind(self) -> None:
        """UsageError if the parameter has another dtype, device or shape than at the start."""
        then, now = self.kind, self._kind()
        if now != then:
            raise UsageError(
                f"{self.name!r} was {then[0]} on {then[1]} at resireduce.distribute(...), and is {now[0]} on {now[1]} "
                f"now (shape {then[2]}, now {now[2]}): convert or move the model before, or close() the optimizer and "
                "distribute anew"
            )

    def remember_sent(self, gathered: bool) -> None:
        """Keep what is about to be sent: unless it is `gathered`, a copy, since ranks' messages are summed in place."""
        if self.payload is not None:
            own = self.payload.buffer if gathered else self.payload.buffer.clone()
            self.sent = replace(self.payload, buffer=own)


def make_slots(parameters: Mapping[str, nn.Parameter], feedback: ErrorFeedback) -> list[Slot]:
    """One for each of `parameters`, by name in the order of the model, whose gradients `feedback` compresses."""
    guard = guards(dict(parameters))
    slots = []
    for index, (name, parameter) in enumerate(parameters.items()):
        dense = not feedback.keeps_residual(name)
        slots.append(Slot(index, name, parameter, dense, dense and is_small(parameter), guard[name]))
    return slots
