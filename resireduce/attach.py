"""The hooks that hand gradients to their owner, the object that takes them, and the removal of these hooks."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from resireduce.errors import UsageError, warn
from resireduce.orphaned import Orphans, end_watch
from resireduce.refusals import COMPILED_AUTOGRAD, StepGuard
from resireduce.step.dear import QUIET, BeforeForward
from resireduce.step.slot import Slot
from resireduce.wrappers.hooks import accumulation_node

_OWNERS = WeakTensorKeyDictionary()
"""For each distributed parameter, a weak reference to the owner, which takes its gradients."""


def is_distributed(parameter: Tensor) -> bool:
    """Whether an optimizer of the library that is in use averages the gradients of `parameter`."""
    owner = _OWNERS.get(parameter)
    return owner is not None and owner() is not None


class Attachment:
    """The hooks of the owner, the object that takes gradients. They hold it weakly, and are removed with it.

    Args:
        owner: is passed to the functions that the hooks call, and has `slots`.
        slots: one for each parameter whose gradients it takes.
        world_size: the number of ranks.
    """

    def __init__(self, owner: object, slots: Sequence[Slot], world_size: int):
        self._slots = slots
        end_watch(slot.parameter for slot in slots)
        self._handles: list[RemovableHandle] = []
        self._nodes: dict[int, Any] = {}  # held, since torch frees nodes with their hooks
        self._steps = [0, 0]  # whether the owner takes a step, and how many it has taken
        self._owner = weakref.ref(owner)
        for slot in slots:
            _OWNERS[slot.parameter] = self._owner
        self._guards: list[RemovableHandle] = []
        self._end = weakref.finalize(owner, _lost, slots, self._handles, self._guards, self._steps, world_size)
        self._end.atexit = False

    def on_gradients(self, act: Callable[[Any, Slot], None]) -> None:
        """Call `act(owner, slot)` when autograd has finished a gradient."""
        for slot in self._slots:
            hook = _Hook(self._owner, slot.index, act)
            self._handles.append(slot.parameter.register_post_accumulate_grad_hook(hook))

    def before_gradient(self, slot: Slot, act: Callable[[Any, Slot, bool], None]) -> None:
        """Call `act(owner, slot, comes)` before autograd adds a gradient to `.grad`; `comes` is False if there is none
        to add.

        Call this again when a gradient has come without a call of `act`: torch makes another node for a parameter whose
        dtype or device was changed, even if it was changed back.
        """
        node = accumulation_node(slot.parameter)
        if self._nodes.get(slot.index) is not node:
            self._nodes[slot.index] = node
            self._handles.append(node.register_prehook(_Before(self._owner, slot.index, act)))

    def on_step(self, wrapped: torch.optim.Optimizer) -> None:
        """Refuse steps of the optimizer `wrapped` that are not taken within `stepping`."""
        for key, hook in list(wrapped._optimizer_step_pre_hooks.items()):
            if isinstance(hook, StepGuard):  # of an owner that was lost
                del wrapped._optimizer_step_pre_hooks[key]
        self._guards.append(wrapped.register_step_pre_hook(StepGuard(self._steps)))

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Return a context in which the wrapped optimizer may take its step."""
        self._steps[0] += 1
        self._steps[1] += 1
        try:
            yield
        finally:
            self._steps[0] -= 1

    def on_forward(self, model: torch.nn.Module) -> None:
        """Refuse training of `model` within DistributedDataParallel, which would otherwise go unnoticed.

        Each module that has parameters checks: a wrapper may call parts of the model instead of the model. Modules of
        torch.jit take no such hooks.
        """
        held = {slot.parameter for slot in self._slots}
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if module is model or held.intersection(module.parameters(recurse=False)):
                self._handles.append(module.register_forward_pre_hook(refuse_within_ddp))

    def on_use(
        self,
        model: torch.nn.Module,
        wrapped: torch.optim.Optimizer,
        before_forward: BeforeForward,
        flush: Callable[[Any], None],
    ) -> None:
        """Call `before_forward` before a module of `model` uses parameters, and `flush(owner)` before the state of the
        optimizer `wrapped` is saved or loaded."""
        held = {slot.parameter for slot in self._slots}
        for module in model.modules():
            if own := held.intersection(module.parameters(recurse=False)):
                self._handles.append(module.register_forward_pre_hook(before_forward))
                if type(module).forward is torch.nn.Module.forward:
                    before_forward.unseen |= own

        def act(*_: object, owner: weakref.ref[Any] = self._owner) -> None:
            if (here := owner()) is not None:
                flush(here)

        self._handles.append(wrapped.register_state_dict_pre_hook(act))
        self._handles.append(wrapped.register_load_state_dict_pre_hook(act))

    def end(self) -> None:
        """Remove all hooks, and forget the gradients under way."""
        self._end.detach()
        _detach(self._slots, [*self._handles, *self._guards])


class _Hook:
    """Calls `act(owner, slot)` as long as the owner exists."""

    def __init__(self, owner: weakref.ref[Any], index: int, act: Callable[[Any, Slot], None]):
        self._owner, self._index, self._act = owner, index, act

    @torch.compiler.disable(reason=COMPILED_AUTOGRAD)
    def __call__(self, _: object) -> None:
        owner: Any = self._owner()
        if owner is not None:
            self._act(owner, owner.slots[self._index])


class _Before:
    """Calls `act(owner, slot, comes)` as long as the owner exists: no gradient comes if autograd passes None."""

    def __init__(self, owner: weakref.ref[Any], index: int, act: Callable[[Any, Slot, bool], None]):
        self._owner, self._index, self._act = owner, index, act

    @torch.compiler.disable(reason=COMPILED_AUTOGRAD)
    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        owner: Any = self._owner()
        if owner is not None:
            self._act(owner, owner.slots[self._index], gradients[0] is not None)


def _lost(
    slots: Sequence[Slot],
    handles: Sequence[RemovableHandle],
    guards: Sequence[RemovableHandle],
    steps: list[int],
    world_size: int,
) -> None:
    """Remove the hooks that a garbage-collected owner has left; if it took no step, the wrapped optimizer still refuses
    steps.

    If it took some, with other ranks, the next backward pass gives a warning.
    """
    _detach(slots, [*handles, *(guards if steps[1] else [])])
    if steps[1] and world_size > 1:
        Orphans(slot.parameter for slot in slots)
    if not steps[1]:
        warn(
            "what resireduce.distribute(...) returned is gone before its first step, and with it all that averages "
            "gradients: keep it, and call its step() in place of the other optimizer's"
        )


def _detach(slots: Sequence[Slot], handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    for slot in slots:
        with QUIET():  # an update that is still to come is taken when the parameter is used
            slot.restart()
        _OWNERS.pop(slot.parameter, None)


def refuse_within_ddp(model: torch.nn.Module, _: object) -> None:
    """Raise UsageError if `model`, whose gradients an optimizer of the library averages, is called by a wrapper.

    `_`: the arguments of the call.
    """
    if DistributedDataParallel._get_active_ddp_module() is not None and any(map(is_distributed, model.parameters())):
        raise UsageError(
            f"{type(model).__name__} is trained within a wrapper that averages gradients too: take the model out of "
            "DistributedDataParallel, or use resireduce.compress_ddp(...) instead of resireduce.distribute(...)"
        )
