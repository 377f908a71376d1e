"""The hooks of the library on a model, and its backward passes: gradients are taken as autograd makes them."""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from resireduce import private
from resireduce.core.bucket import Slot, Stage
from resireduce.core.step import Exchange
from resireduce.errors import UsageError
from resireduce.settings import Settings
from resireduce.watchers import COMPILED_AUTOGRAD, DISTRIBUTED, StepGuard, refuse_compiled_autograd, watch_orphans

if TYPE_CHECKING:
    from resireduce.forms import AddingUp

# --- The hooks that hand over gradients, and their removal ---


Act = Callable[[Any, Slot, Any], None]
"""What a hook does; its arguments are the owner of the hooks, the slot, and what autograd gives the hook."""


@torch.compiler.disable(reason=COMPILED_AUTOGRAD)
def _call(place: weakref.ref[Any], index: int, act: Act, given: Any) -> None:
    """Call `act(owner, slot, given)`, with what autograd has given a hook, as long as the owner exists."""
    if (owner := place()) is not None:
        with owner.turn:
            act(owner, owner.slots[index], given)


def _lost(slots: Sequence[Slot], handles: Sequence[RemovableHandle], guard: StepGuard, world_size: int) -> None:
    """Remove the hooks that a garbage-collected owner has left. If it never took a step, the first stays: it has the
    wrapped optimizer refuse steps. With other ranks, the next backward pass gives a warning."""
    _detach(slots, handles if guard.steps else handles[1:])
    if world_size > 1:
        watch_orphans(slot.parameter for slot in slots)


def _detach(slots: Sequence[Slot], handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    for slot in slots:
        slot.restart()
        DISTRIBUTED.pop(slot.parameter, None)


def refuse_within_ddp(model: torch.nn.Module, _: object) -> None:
    """Raise UsageError if `model`, whose gradients an optimizer of the library averages, is called by a wrapper."""
    if private.active_ddp() is not None and any(one in DISTRIBUTED for one in model.parameters()):
        raise UsageError(
            f"{type(model).__name__} is trained within a wrapper that averages gradients too: take the model out of "
            "DistributedDataParallel, or use resireduce.compress_ddp(...) instead of resireduce.distribute(...)"
        )


class BackwardPasses:
    """Hands the gradients of `model` to an `exchange`, by hooks that hold it weakly and are removed with it."""

    def __init__(self, model: nn.Module, wrapped: torch.optim.Optimizer, exchange: Exchange, settings: Settings):
        self.turn = threading.RLock()
        """Held by the hook that acts: autograd runs a thread for each device, and scripts may run several passes."""
        self.slots, self._exchange = exchange.slots, exchange
        self.intake: Exchange | AddingUp = exchange
        """What is given the gradients."""
        self.under_way = False
        """Whether a backward pass has begun and not finished."""
        self._handles: list[RemovableHandle] = []  # that of the guard before steps is the first
        self._nodes: dict[int, Any] = {}  # held, since torch frees nodes with their hooks
        self.step_guard = StepGuard()
        DISTRIBUTED.update(dict.fromkeys((slot.parameter for slot in self.slots), True))
        world_size = exchange.queue.world.world_size
        self._lost = weakref.finalize(self, _lost, self.slots, self._handles, self.step_guard, world_size)
        self._lost.atexit = False
        try:
            self._attach(model, wrapped, settings)
        except BaseException:
            self.end()
            raise

    def _attach(self, model: nn.Module, wrapped: torch.optim.Optimizer, settings: Settings) -> None:
        """Put hooks on the parameters, on modules of `model`, and on the optimizer `wrapped`."""
        for key, guard in list(wrapped._optimizer_step_pre_hooks.items()):
            if isinstance(guard, StepGuard):  # of an owner that was lost
                del wrapped._optimizer_step_pre_hooks[key]
        self._handles.append(wrapped.register_step_pre_hook(self.step_guard))
        # Of kept gradients it suffices to note that autograd has finished them: `step()` takes them.
        act: Act = BackwardPasses._on_finished if settings.streamed else lambda _, slot, given: slot.note_made()
        for slot in self.slots:
            self._handles.append(slot.parameter.register_post_accumulate_grad_hook(self._hook(slot, act)))
            if settings.streamed:
                self._announce(slot)
        if not settings.streamed or settings.in_backward:  # otherwise the guard in `.grad` gives such a wrapper away
            for module in (model, *model.children()):  # `model` may be the wrapper, or be called by it
                if not isinstance(module, torch.jit.ScriptModule):  # which takes no such hooks
                    self._handles.append(module.register_forward_pre_hook(refuse_within_ddp))

    def _announce(self, slot: Slot) -> None:
        """Call `_before` before autograd adds a gradient to the `.grad` of `slot`, by the node through which all graphs
        do so. torch makes another node, without hooks, for a parameter whose dtype or device was changed."""
        with torch.enable_grad():
            view: Any = slot.parameter.view_as(slot.parameter)
        node = view.grad_fn.next_functions[0][0]
        if self._nodes.get(slot.index) is not node:
            self._nodes[slot.index] = node
            self._handles.append(node.register_prehook(self._hook(slot, BackwardPasses._before)))

    def _hook(self, slot: Slot, act: Act) -> Callable[[Any], None]:
        return partial(_call, weakref.ref(self), slot.index, act)

    def end(self) -> None:
        """Remove all hooks, and forget the gradients under way."""
        self._lost.detach()
        _detach(self.slots, self._handles)

    def _before(self, slot: Slot, gradients: Sequence[Tensor | None]) -> None:
        """Prepare for the gradient that autograd is about to add to `.grad`, if it is not None."""
        comes = slot.is_announced = gradients[0] is not None
        is_clear = slot.stage is Stage.OPEN and slot.parameter.grad is None  # most often, so it must cost little
        if not is_clear and comes:
            self._exchange.refuse_if_failed()
            self.intake.expect(slot)

    def _on_finished(self, slot: Slot, _: object) -> None:
        """Take this parameter's gradient, if one came: autograd also calls this if a function returned None."""
        comes, slot.is_announced = slot.is_announced, None
        if comes is None:
            self._announce(slot)
            comes = slot.parameter.grad is not None and not slot.is_guarded
        if comes and not self.intake.has_gone(slot):
            if torch.is_grad_enabled():  # with create_graph=True; to switch it off each time would cost more
                with torch.no_grad():
                    self._on_gradient(slot)
            else:
                self._on_gradient(slot)

    def _on_gradient(self, slot: Slot) -> None:
        """Take this parameter's gradient, which is complete, in `.grad`, perhaps the first of a backward pass."""
        refuse_compiled_autograd()
        self._exchange.refuse_if_failed()
        if not self.under_way:
            self.under_way = True
            private.at_end_of_pass(self._end)
        self.intake.gradient(slot)

    def _end(self) -> None:
        """End a backward pass; not called if the pass fails."""
        with self.turn:
            self.under_way = False
            self._exchange.lifetime.after_backward(self.slots)
