"""How the wrapped optimizer uses received averages: several together, those of large tensors in slices."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from resireduce.errors import UsageError, warn
from resireduce.same_memory import TIE, Tied
from resireduce.settings import Settings
from resireduce.step.launch import LaunchQueue
from resireduce.step.slicing import rows_of, slice_bytes
from resireduce.step.slot import Slot
from resireduce.timeline import Timeline, timed
from resireduce.wrapped_step import WrappedStep


class Applier:
    """Has the wrapped optimizer update parameters: those of a chunk of averages at once, large ones in slices of rows.

    Args:
        optimizer: the wrapped optimizer.
        slots: one for each parameter that is averaged.
        queue: where messages come from.
        settings: what `resireduce.distribute` was given.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, slots: Sequence[Slot], queue: LaunchQueue, settings: Settings):
        self.queue, self.streamed = queue, settings.streamed
        self._parameters = [slot.parameter for slot in slots]
        self._waiting = slots if settings.in_backward else ()  # whose `.grad` may be set by hand meanwhile
        self.sizes = slice_bytes(settings.slices, slots, optimizer)
        self.slice_bytes = self.sizes.average
        self.chunk_bytes = self.slice_bytes or largest_layer(slots)
        self.large = frozenset(slot for slot in slots if self.slice_bytes and slot.nbytes > self.slice_bytes)
        alone = self.streamed or settings.in_halves  # whether some are updated before others
        self._tied = Tied({slot.name: slot.parameter for slot in slots}) if alone else None
        self._held_bytes, self._early = sum(slot.nbytes for slot in slots), settings.in_backward or settings.in_halves
        self._wrapped_step = WrappedStep(optimizer, self.streamed, self._tied)
        self._sliced = False
        self._updating: list[Slot] = []  # received, waiting for the wrapped optimizer
        self._updating_bytes = 0

    @property
    def timeline(self) -> Timeline | None:
        """The timeline of the pipeline, if it has one."""
        return self.queue.feedback.timeline

    def look_for_ties(self) -> None:
        """Hold all averages for one update, with a warning, if two parameters were given the same memory since.

        Raises UsageError where one of them is updated before all uses of the other.
        """
        if self._tied is None:
            return
        found = self._tied.look()
        if self._tied.pair is None:
            return
        if self._early:
            one, other = self._tied.pair
            raise UsageError(
                f"{one!r} and {other!r} were given the same memory after resireduce.distribute(...): an update of one "
                f"changes the other before all of its uses; {TIE}, or leave update='in_backward' and merge='dear' out"
            )
        if found and self.streamed and self._wrapped_step.is_divisible:
            warn(self._wrapped_step.cost(self._held_bytes) or "")

    def _receive(self) -> Slot:
        """Receive the oldest message; in slices, update first if one more average would make more than a chunk."""
        slot = self.queue.next()
        assert slot is not None
        self._make_room(slot)
        if self.queue.receive() is not None:
            self._add(slot)
        return slot

    def _make_room(self, slot: Slot) -> None:
        if self._sliced and self._updating and self._updating_bytes + slot.nbytes > self.chunk_bytes:
            self._update_some()

    def _add(self, slot: Slot, factor: Tensor | None = None) -> None:
        """Update a slot whose average has come, scaled by `factor`: at once in slices, or later with others."""
        if slot in self.queue.in_slices:
            self._update_in_rows(slot, factor)
            return
        if factor is not None:
            slot.parameter.grad.mul_(factor.to(slot.parameter.device))  # type: ignore[union-attr]
        self._updating.append(slot)
        self._updating_bytes += slot.nbytes

    @timed("update")
    def _update_some(self) -> None:
        """Let the wrapped optimizer update the parameters whose averages have come; it skips those without `.grad`."""
        with self._by_hand_aside():
            self._wrapped_step.some()
        self._free()

    @contextmanager
    def _by_hand_aside(self) -> Iterator[None]:
        """Return a context in which only parameters that are being updated have a gradient. One that was put into
        `.grad` by hand during the backward pass is this rank's own until `step()` averages it."""
        held = [(slot, grad) for slot in self._waiting if (grad := slot.parameter.grad) is not None]
        aside = [(slot.parameter, grad) for slot, grad in held if slot not in self._updating]
        for parameter, _ in aside:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, grad in aside:
                parameter.grad = grad

    @timed("update")
    def _update_in_rows(self, slot: Slot, factor: Tensor | None) -> None:
        """Let the wrapped optimizer update a large parameter, in slices of its rows, and forget each average."""

        def averages() -> Iterator[tuple[slice, Tensor]]:
            rows = rows_of(slot, self.slice_bytes)
            parts = iter(rows)
            for average in self.queue.averages(slot, rows):  # zip would hold the last one while the next is made
                if factor is not None:
                    average.mul_(factor.to(average.device))
                yield next(parts), average
                del average

        self._wrapped_step.rows(slot.parameter, averages())
        slot.message = None

    @timed("update")
    def _update_rest(self, loss: Tensor | float | None) -> None:
        self._wrapped_step.whole(loss, self._parameters)

    def _free(self) -> None:
        if self.streamed:
            for slot in self._updating:
                slot.parameter.grad = None
        self._updating, self._updating_bytes = [], 0


def largest_layer(slots: Sequence[Slot]) -> int:
    """Return the gradient bytes of the largest layer of `slots`: tensors whose names differ only in the last part."""
    layers: dict[str, int] = {}
    for slot in slots:
        layer = slot.name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + slot.nbytes
    return max(layers.values())
