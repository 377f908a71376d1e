"""Buckets: lists of tensors whose gradients are compressed, travel, and come back together, and the rules for their
borders."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Message, Round
from resireduce.core.slot import Slot
from resireduce.errors import NonFiniteGradient

SMALL_BYTES = 1 << 18
"""Small dense tensors (biases, norms) are in buckets of up to this size: each message costs time."""
LARGEST_BYTES, SHARE = 25 << 20, 32
"""Most bytes of gradients in a bucket of compressed tensors, unless it has a single larger one; and the share of all
these that it has at most, 1 / SHARE: what waits for a bucket to be complete is small beside the model."""


@dataclass(eq=False)
class Bucket:
    """Tensors whose gradients are compressed and sent together, all of one dtype and device: all dense, or none."""

    slots: list[Slot]
    """One for each tensor."""
    message: Message | Round | None = None
    """This rank's message in this step, from its compression to its last use; or the round before it."""
    is_compressed: bool = False
    """Whether it has been compressed in this step."""

    @property
    def is_ready(self) -> bool:
        """Whether all gradients have come: the last one is asked first, since this is asked for each."""
        return all(slot.is_ready for slot in reversed(self.slots))

    @property
    def nbytes(self) -> int:
        """Bytes of the dense gradients."""
        return sum(slot.nbytes for slot in self.slots)

    @property
    def name(self) -> str:
        """The name of the first tensor, by which ranks pair messages."""
        return self.slots[0].name

    def compress(self, feedback: ErrorFeedback, step: int) -> dict[Slot, NonFiniteGradient]:
        """Make this rank's message of `step` by `feedback`, and let the gradients go.

        Return which of them were not finite, each with its error.
        """
        gradients = {slot.name: slot.gradient for slot in self.slots}
        for slot in self.slots:
            slot.gradient = None
        refused: dict[str, NonFiniteGradient] = {}
        absorbed = [slot.name for slot in self.slots if slot.is_absorbed]
        self.message, self.is_compressed = feedback.compress(gradients, step, absorbed, refused), True
        return {slot: refused[slot.name] for slot in self.slots if slot.name in refused}

    def restart(self) -> None:
        """Begin a step anew."""
        self.message, self.is_compressed = None, False


def in_buckets(order: Sequence[Slot], merge: Any, feedback: ErrorFeedback) -> list[Bucket]:
    """Return the buckets of the tensors in `order`, the one in which gradients arrive.

    Dense tensors have their own, but small ones of one kind share them; compressed ones are merged as `merge` says, as
    in `resireduce.distribute`, checked. Where a rule has to be given times first, each has its own until then.
    `feedback` says how many bytes are sent of each.
    """
    compressed = [slot for slot in order if feedback.merges(slot.name)]
    dense = [slot for slot in order if not feedback.merges(slot.name)]
    limit = sum(slot.nbytes for slot in order) if merge == "hybrid" else SMALL_BYTES
    lists = [*_merged(compressed, merge, feedback), *small_together(dense, limit)]
    return [*arrange([Bucket(one) for one in lists], order)]


def small_together(order: Iterable[Slot], limit_bytes: int = SMALL_BYTES) -> Iterator[list[Slot]]:
    """Cut `order` into lists: each tensor by itself, but small ones of one kind together, up to `limit_bytes`."""
    waiting: list[Slot] = []
    for slot in order:
        if not slot.small:
            yield [slot]
            continue
        if waiting and (not slot.is_like(waiting[0]) or sum(s.nbytes for s in waiting) + slot.nbytes > limit_bytes):
            yield waiting
            waiting = []
        waiting.append(slot)
    if waiting:
        yield waiting


def arrange(buckets: Iterable[Bucket], order: Iterable[Slot]) -> Iterator[Bucket]:
    """Yield `buckets` in the order in which tensors, coming in `order`, complete them; one of small tensors leaves when
    the next one begins.

    What they hold never changes: with three ranks or more, how an all-reduce rounds an element depends on its place in
    the message, and training that resumes from a checkpoint begins with the first order again.
    """
    place = {slot: bucket for bucket in buckets for slot in bucket.slots}
    missing = {bucket: len(bucket.slots) for bucket in place.values()}
    ready: list[Bucket] = []
    for slot in order:
        bucket = place[slot]
        missing[bucket] -= 1
        complete = [] if missing[bucket] else [bucket]
        if slot.small:
            yield from ready
            ready = complete
        else:
            yield from complete
    yield from ready


def _merged(slots: Sequence[Slot], merge: Any, feedback: ErrorFeedback) -> list[list[Slot]]:
    """Return the lists of `slots`, tensors that are compressed; names of other tensors in `merge` are ignored."""
    if merge is None and not feedback.compressor.has_rounds:
        limit = min(LARGEST_BYTES, sum(slot.template.nbytes for slot in slots) // SHARE)
        return [*_filled(slots, limit, lambda slot: slot.template.nbytes)]
    if isinstance(merge, str | None):
        return [*_alike(slots)] if merge in ("one", "hybrid") else [[slot] for slot in slots]
    if isinstance(merge, int):
        return [*_filled(slots, merge, lambda slot: sent_bytes(slot, feedback))]
    by_name = {slot.name: slot for slot in slots}
    listed = [[by_name.pop(name) for name in names if name in by_name] for names in merge]
    return [run for names in listed for run in _alike(names)] + [[slot] for slot in by_name.values()]


def sent_bytes(slot: Slot, feedback: ErrorFeedback) -> int:
    """Return the bytes that a rank sends of `slot`, compressed by `feedback`, in the first step after warm-up."""
    like = torch.empty(slot.template.shape, dtype=slot.template.dtype, device="meta")
    return feedback.later_compressor_of(slot.name).compress(like, slot.name, feedback.warm_up_steps).nbytes


def _alike(slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield the longest runs of tensors of one kind."""
    run: list[Slot] = []
    for slot in slots:
        if run and not slot.is_like(run[0]):
            yield run
            run = []
        run.append(slot)
    if run:
        yield run


def _filled(slots: Iterable[Slot], limit_bytes: int, size: Callable[[Slot], int]) -> Iterator[list[Slot]]:
    """Yield runs of `limit_bytes` at most, by the `size` of each tensor, or of one tensor that is larger."""
    for run in _alike(slots):
        filled, held = [run[0]], size(run[0])
        for slot in run[1:]:
            nbytes = size(slot)
            if held + nbytes > limit_bytes:
                yield filled
                filled, held = [], 0
            filled.append(slot)
            held += nbytes
        yield filled
