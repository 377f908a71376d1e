"""The layers that make gradients row by row: which they are, and what is changed in them."""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from resireduce.accumulation import accumulation_node
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import warn
from resireduce.slices.copies import without_own_forward
from resireduce.slices.layers import forms
from resireduce.slices.row_gradients import RowGradient
from resireduce.slices.takers import TAKERS, Taker
from resireduce.slices.why_whole import Holders, row_forward, why_whole
from resireduce.step.slot import Slot

TWICE = (
    "its residual does not hold the sum with the gradient exactly, so all rows are computed twice, to select what is "
    "sent and to take it out: four products of its layer in a step instead of three"
)
THRICE = (
    "what its residual stores depends on norms of all that is left, so all rows are computed three times, to select "
    "what is sent, for these norms, and to take it out: five products of its layer in a step instead of three"
)
SHARED = (
    "; several layers share it: inputs and output gradients of each use are kept until the last one, as long as they "
    "take less than the gradient; otherwise the part of that use is whole"
)


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
        for slot, holders in self._able(model, slots, feedback, passes):
            taker = _taker(slot, act, weakref.ref(owner))
            self._take_over(slot, holders, taker, _after(slot, done, weakref.ref(owner)))
        self._end = weakref.finalize(
            owner, _restore, self._modules, [slot.parameter for slot in self.by_rows], self._handles
        )
        self._end.atexit = False

    def _able(
        self, model: nn.Module, slots: Sequence[Slot], feedback: ErrorFeedback, passes: int
    ) -> Iterator[tuple[Slot, Holders]]:
        """Yield the slots whose gradients can be made row by row, with the layers that hold their weight; note why the
        others cannot, and which are made more than once."""
        for slot in slots:
            holders = [(m, key) for m in model.modules() for key, p in m._parameters.items() if p is slot.parameter]
            reason = why_whole(slot, holders, feedback, passes)
            if reason is not None:
                self.whole[slot.name] = reason
                continue
            if not feedback.residual.absorbs(slot.name):
                times = THRICE if feedback.residual.looks_first(slot.name) else TWICE
                self.twice[slot.name] = times + (SHARED if len(holders) > 1 else "")
            yield slot, holders

    def _take_over(self, slot: Slot, holders: Holders, taker: Taker, after: Callable[..., None]) -> None:
        """Have `holders` make the gradient of `slot` row by row for `taker`; `after` is called at its last use."""
        self.by_rows.add(slot)
        self.shared |= {slot} if len(holders) > 1 else set()
        TAKERS[slot.parameter] = taker
        self._handles.append(taker.node.register_hook(after))
        for module, _ in holders:
            without_own_forward(type(module))
            module.forward = MethodType(row_forward(module), module)
            self._modules.append(module)

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
