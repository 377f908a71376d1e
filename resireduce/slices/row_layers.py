"""Which weights have their gradients made row by row, why others do not, and what is changed in their layers."""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.hooks import RemovableHandle

from resireduce.accumulation import accumulation_node
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import warn
from resireduce.slices.copies import without_own_forward
from resireduce.slices.layers import TAKERS, Taker, forms
from resireduce.slices.row_gradients import RowGradient
from resireduce.slices.torchs_own import is_torchs_own, other_option
from resireduce.step.slot import Slot

TWICE = (
    "its residual does not hold the sum with the gradient exactly, so all rows are made once to see what is to be "
    "sent, and once to take that out: one more product beside the three of its layer"
)
THRICE = (
    "what its residual stores depends on norms of all that is left, so all rows are made once to see what is to be "
    "sent, once for these norms, and once to take that out: two more products beside the three of its layer"
)
SHARED = (
    "; several layers share it: what a use of it was given is kept for that until the last, as long as it takes less "
    "than the gradient, whose part of that use is whole else"
)
Holders = Sequence[tuple[nn.Module, str]]
"""The modules that hold a parameter, each with its name for it."""


class RowLayers:
    """The layers of `model` that hold the weights of `slots`, while they make gradients row by row.

    Args:
        model: its classes, names and state stay as they are: a layer gets a `forward` of its own.
        slots: those of large parameters.
        feedback: knows which residuals absorb gradients.
        act: is called with the owner, slot and gradient; False: the gradient must be whole.
        done: is called with the owner and slot when a backward pass has reached the weight's last use.
        owner: takes the gradients, has `slots`, and is held weakly.
        passes: backward passes of a step.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Sequence[Slot],
        feedback: ErrorFeedback,
        act: Callable[[Any, Slot, RowGradient], bool],
        done: Callable[[Any, Slot], None],
        owner: object,
        passes: int,
    ):
        self.whole: dict[str, str] = {}
        """Why the gradient of a large parameter is made whole, by its name."""
        self.twice: dict[str, str] = {}
        """Why the gradient of a large parameter is made twice, row by row, by its name."""
        self.by_rows: set[Slot] = set()
        """The slots whose gradients are not made whole."""
        self.shared: set[Slot] = set()
        """The slots in `by_rows` whose weight several layers share."""
        self._absorbs = feedback.absorbs
        self._streams: dict[Slot, set[torch.cuda.Stream]] = defaultdict(set)
        self._modules: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []
        for slot in slots:
            holders = [(m, key) for m in model.modules() for key, p in m._parameters.items() if p is slot.parameter]
            reason = why_whole(slot, holders, feedback, passes)
            if reason is not None:
                self.whole[slot.name] = reason
                continue
            if not feedback.residual.absorbs(slot.name):
                times = THRICE if feedback.residual.looks_first(slot.name) else TWICE
                self.twice[slot.name] = times + (SHARED if len(holders) > 1 else "")
            self.by_rows.add(slot)
            self.shared |= {slot} if len(holders) > 1 else set()
            taker = TAKERS[slot.parameter] = _taker(slot, act, weakref.ref(owner))
            self._handles.append(taker.node.register_hook(_after(slot, done, weakref.ref(owner))))
            for module, _ in holders:
                without_own_forward(type(module))
                module.forward = MethodType(_form(module), module)
                self._modules.append(module)
        self._end = weakref.finalize(
            owner, _restore, self._modules, [slot.parameter for slot in self.by_rows], self._handles
        )
        self._end.atexit = False

    def note_stream(self, slot: Slot) -> None:
        """Remember the current stream of a GPU, on which part of the gradient of `slot` has just been taken."""
        if slot.parameter.is_cuda:
            self._streams[slot].add(torch.cuda.current_stream(slot.parameter.device))

    @contextmanager
    def joined(self, slot: Slot) -> Iterator[None]:
        """Within it, work waits for the streams on which the gradient of `slot` was taken, and they then for it.

        Autograd adds up gradients on the stream that was current when the library came, and a layer makes them on that
        of its forward pass. It makes neither wait for the other where no gradient passes between them.
        """
        streams = self._streams.pop(slot, ())
        for stream in streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        yield
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))

    def notice(self, slot: Slot) -> None:
        """Warn once about a gradient that has come whole although all its layers would make it row by row."""
        if slot in self.by_rows and slot.parameter.grad is not None and self._absorbs(slot.name):
            self.by_rows.discard(slot)
            warn(
                f"the gradient of {slot.name!r} came whole, so that slices save nothing of it: under autocast, "
                "torch.compile or torch.func, or where the weight is used outside of its layers or these have been "
                "given another forward, it cannot be made row by row"
            )

    def end(self) -> None:
        """Give the layers their own `forward` back."""
        self._end()


def why_whole(slot: Slot, holders: Holders, feedback: ErrorFeedback, passes: int) -> str | None:
    """Return why the gradient of `slot`, whose parameter `holders` hold, must be whole; None: it need not be.

    feedback: knows whether the residual absorbs it, or else takes parts of it. passes: backward passes of a step.
    """
    if not feedback.keeps_residual(slot.name):
        return "it is sent without compression"
    if feedback.momentum is not None:
        return "the compressor corrects momentum, with the whole gradient"
    if not feedback.residual.absorbs(slot.name) and (reason := _why_not_twice(slot, feedback, passes)):
        return f"its residual is none that absorbs gradients: a full one, in the gradient's dtype of 32 bits; {reason}"
    if type(slot.parameter) is not nn.Parameter:
        return f"it is a {type(slot.parameter).__name__} and no plain nn.Parameter, which may compute in its own way"
    if slot.parameter._backward_hooks or len(slot.parameter._post_accumulate_grad_hooks or {}) > 1:
        return "a hook is registered for it"
    return next((reason for module, key in holders if (reason := _why_not(module, key))), None)


def _why_not_twice(slot: Slot, feedback: ErrorFeedback, passes: int) -> str | None:
    """Return why the gradient of `slot` cannot be made twice, row by row, for a residual that does not absorb it."""
    if not feedback.residual.takes_parts(slot.name):
        return "it cannot be read and written some rows at a time, as those stored in a floating-point dtype can"
    if not feedback.compressor.selects_from_parts(slot.parameter):
        return f"{type(feedback.compressor).__name__} selects from the whole gradient, where topk can do without"
    if not slot.parameter.is_contiguous():
        return "the rows of the weight do not lie one after the other in memory: give it weight.contiguous()"
    if passes > 1:
        return "gradients of several passes are added up before they are compressed"
    return None


def _why_not(module: nn.Module, key: str) -> str | None:
    """Return why the gradient of the parameter `key` of `module` cannot be made row by row; None if it can."""
    kind, own = type(module), vars(module).get("forward")
    form, name = _form(module), type(module).__name__
    if form is None or key != "weight":
        return (
            f"{name}.{key} is no weight of nn.Linear, nn.Embedding or nn.Conv2d, or transformers' Conv1D, with their "
            "own forward"
        )
    if own is not None and getattr(own, "__func__", None) not in (kind.forward, form):
        return f"a forward has been put into its {name}"
    options = other_option(module)
    return None if options is None else f"its {name} has {options}"


def _form(module: nn.Module) -> Any:
    """Return the forward that makes gradients row by row, for a module with torch's own forward; otherwise None.

    The forward of `nn.MultiheadAttention.out_proj` is never called: attention uses its weight directly.
    """
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return None
    for kind, form in forms().items():
        if isinstance(module, kind):
            return form if type(module).forward is kind.forward and is_torchs_own(module) else None
    return None


def _taker(slot: Slot, act: Callable[[Any, Slot, RowGradient], bool], owner: weakref.ref[Any]) -> Taker:
    index = slot.index

    def take(gradient: RowGradient) -> bool:
        optimizer = owner()
        return optimizer is not None and act(optimizer, optimizer.slots[index], gradient)

    return Taker(accumulation_node(slot.parameter), take)


def _after(slot: Slot, done: Callable[[Any, Slot], None], owner: weakref.ref[Any]) -> Callable[..., None]:
    index = slot.index

    def after(*_: object) -> None:
        optimizer = owner()
        if optimizer is not None:
            done(optimizer, optimizer.slots[index])

    return after


def _restore(
    modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter], handles: Sequence[RemovableHandle]
) -> None:
    for handle in handles:
        handle.remove()
    for module in modules:
        if getattr(vars(module).get("forward"), "__func__", None) in forms().values():
            del module.forward
    for parameter in parameters:
        TAKERS.pop(parameter, None)
