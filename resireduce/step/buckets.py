"""Which tensors share a message (small dense ones in buckets, others as `merge` says), and the order of messages."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from resireduce.error_feedback import ErrorFeedback
from resireduce.payload import Payload
from resireduce.step.slot import Slot

BUCKET_BYTES = 1 << 18
"""Small dense tensors (biases, norms) travel together in messages of up to this size: each message costs time."""


def buckets(order: Iterable[Slot], limit_bytes: int = BUCKET_BYTES) -> Iterator[list[Slot]]:
    """Cut `order` into messages: each tensor has its own, but small ones of one kind share one.

    Such a message holds at most `limit_bytes`.
    """
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


def arrange(messages: Iterable[list[Slot]], order: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield `messages` in the order in which tensors, coming in `order`, complete them; a message of small tensors
    leaves when the next one begins, as in `buckets`.

    The contents of a message never change: with three ranks or more, how an all-reduce rounds an element depends on its
    place in the message, and training that resumes from a checkpoint begins with the first order again.
    """
    place = {slot: message for message in messages for slot in message}
    missing = {id(message): len(message) for message in place.values()}
    ready: list[list[Slot]] = []
    for slot in order:
        message = place[slot]
        missing[id(message)] -= 1
        complete = [] if missing[id(message)] else [message]
        if slot.small:
            yield from ready
            ready = complete
        else:
            yield from complete
    yield from ready


def merged(slots: Sequence[Slot], merge: Any, feedback: ErrorFeedback) -> list[list[Slot]]:
    """Return the messages of `slots`, tensors that are compressed, in the order in which they arrive.

    merge: as in `resireduce.distribute`, checked; names of other tensors in its lists are ignored. A tensor that no
    list names has a message of its own, and so have all tensors before a rule has decided. `feedback` says how many
    bytes are sent of each.
    """
    if isinstance(merge, str | None):
        return [*_alike(slots)] if merge in ("one", "hybrid") else [[slot] for slot in slots]
    if isinstance(merge, int):
        return [*_filled(slots, merge, feedback)]
    by_name = {slot.name: slot for slot in slots}
    listed = [[by_name.pop(name) for name in names if name in by_name] for names in merge]
    return [message for names in listed for message in _alike(names)] + [[slot] for slot in by_name.values()]


def planned_payload(slot: Slot, feedback: ErrorFeedback) -> Payload:
    """Return the payload of `slot` by `feedback` in the first step after warm-up, without storage."""
    like = torch.empty(slot.template.shape, dtype=slot.template.dtype, device="meta")
    return feedback.later_compressor_of(slot.name).compress(like, slot.name, feedback.warm_up_steps)


def _alike(slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yield the longest runs of tensors of one kind."""
    message: list[Slot] = []
    for slot in slots:
        if message and not slot.is_like(message[0]):
            yield message
            message = []
        message.append(slot)
    if message:
        yield message


def _filled(slots: Iterable[Slot], limit_bytes: int, feedback: ErrorFeedback) -> Iterator[list[Slot]]:
    """Yield messages of `limit_bytes` at most, or of one tensor that is larger."""
    for run in _alike(slots):
        message, filled = [run[0]], planned_payload(run[0], feedback).nbytes
        for slot in run[1:]:
            nbytes = planned_payload(slot, feedback).nbytes
            if filled + nbytes > limit_bytes:
                yield message
                message, filled = [], 0
            message.append(slot)
            filled += nbytes
        yield message
