"""The backward passes of a distributed model: its gradients are taken as autograd makes them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import nn
from torch.autograd import Variable

from resireduce.attach import Attachment
from resireduce.bypassed import Bypassed
from resireduce.errors import UsageError
from resireduce.refusals import AFTER_FAILURE, SECOND_BACKWARD, refuse_capture, refuse_compiled_autograd
from resireduce.settings import Settings
from resireduce.step.exchange import Exchange
from resireduce.step.slot import Slot, Stage

P = ParamSpec("P")
T = TypeVar("T")


def in_turn(
    method: "Callable[Concatenate[BackwardPasses, P], T]",
) -> "Callable[Concatenate[BackwardPasses, P], T]":
    """Return `method`, which waits until no other thread is within such a method of the same object.

    Autograd runs a thread for each device, and scripts may run several passes: the gradients of a model on two devices
    are finished by two threads at the same time, and each hook uses the queue of messages.
    """

    @wraps(method)
    def waiting(self: "BackwardPasses", *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return method(self, *args, **kwargs)

    return waiting


class BackwardPasses:
    """Hands the gradients of `model` to an exchange, by hooks that hold it weakly and are removed with it.

    Args:
        model: the model to train.
        wrapped: the optimizer that trains it.
        exchange: takes the gradients.
        settings: what `resireduce.distribute` was given, checked.
        at_end: is called at the end of each backward pass that overlaps with the exchange.
    """

    def __init__(
        self,
        model: nn.Module,
        wrapped: torch.optim.Optimizer,
        exchange: Exchange,
        settings: Settings,
        at_end: Callable[[], None],
    ):
        self._turn = threading.RLock()
        self.slots, self._exchange, self._at_end = exchange.slots, exchange, at_end
        self.passes_per_step, self._syncing = settings.backward_passes_per_step, True
        self.under_way, self._task = False, -1
        """Whether a backward pass has begun and not finished, and to which run of autograd's engine it belongs."""
        self.bypassed = Bypassed([slot.parameter for slot in self.slots] if exchange.world_size > 1 else (), wrapped)
        self.attachment = Attachment(self, self.slots, exchange.world_size)
        try:
            self._attach(model, wrapped, settings)
        except BaseException:
            self.end()
            raise
        for slot in self.slots:
            slot.parameter.grad = None  # an earlier one is this rank's own, and would be taken for an average

    def _attach(self, model: nn.Module, wrapped: torch.optim.Optimizer, settings: Settings) -> None:
        exchange = self._exchange
        self.attachment.on_gradients(BackwardPasses._on_finished if settings.overlaps else _note_gradient)
        for slot in self.slots if settings.overlaps else ():
            self.attachment.before_gradient(slot, BackwardPasses._before)
        self.attachment.on_step(wrapped)
        if exchange.before_forward is not None:
            self.attachment.on_use(model, wrapped, exchange.before_forward, BackwardPasses._flush)
        if not exchange.hides:  # a guard in `.grad` would show it
            self.attachment.on_forward(model)

    @contextmanager
    def only_adding_up(self) -> Iterator[None]:
        """Return a context in which backward passes only add up gradients; the next pass outside it sends the sum."""
        outer, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = outer

    def restart(self, by_step: bool) -> None:
        """Forget the passes of the last step, which has been taken if `by_step`."""
        self.under_way = False
        if by_step:
            self.bypassed.restart()

    def end(self) -> None:
        """Remove all hooks from the model."""
        self.attachment.end()

    def _flush(self) -> None:
        self._exchange.updater.flush()

    def _begin(self, slot: Slot) -> None:
        """Note that part of this parameter's gradient is there, perhaps the first of a backward pass."""
        refuse_compiled_autograd()
        refuse_capture(slot.parameter.device)
        self._exchange.refuse_if_failed()
        if not self.under_way:
            self.under_way, self._task = True, torch._C._current_graph_task_id()
            self._flush()
            self._exchange.begin_backward()
            Variable._execution_engine.queue_callback(self._end)

    @in_turn
    def _before(self, slot: Slot, comes: bool) -> None:
        """Prepare for the gradient that autograd is about to add to `.grad`, if it `comes`."""
        slot.is_announced = comes
        is_clear = slot.stage is Stage.OPEN and slot.parameter.grad is None  # most often, so it must cost little
        if not is_clear and comes:
            self._exchange.refuse_if_failed()
            if slot.is_over and self.under_way and self._task != torch._C._current_graph_task_id():
                raise UsageError(SECOND_BACKWARD.format(name=slot.name) + AFTER_FAILURE)
            self._exchange.expect(slot)

    @in_turn
    def _on_finished(self, slot: Slot) -> None:
        """Take this parameter's gradient, if one came: autograd also calls this if a function returned None."""
        comes, slot.is_announced = slot.is_announced, None
        if comes is None:
            self.attachment.before_gradient(slot, BackwardPasses._before)
            comes = slot.parameter.grad is not None and not slot.is_guarded
        if comes and not self._exchange.intake.has_gone(slot):
            self._on_gradient(slot)

    def _on_gradient(self, slot: Slot) -> None:
        """Take this parameter's gradient, which is complete, in `.grad`."""
        if torch.is_grad_enabled():  # with create_graph=True
            with torch.no_grad():
                return self._on_gradient(slot)
        self._begin(slot)
        self._exchange.gradient(slot, self.passes_per_step if self._syncing else None)

    @in_turn
    def _end(self) -> None:
        """End a backward pass; not called if the pass fails."""
        self.under_way = False
        self._exchange.end_backward()
        self._at_end()


def _note_gradient(passes: BackwardPasses, slot: Slot) -> None:
    """Note, without overlap, that autograd has finished this parameter's gradient, which `step()` will take."""
    slot.note_made()
    passes.bypassed.note(slot.parameter)
