"""Buckets: small dense tensors that share a message, and the order in which messages leave."""

from collections.abc import Iterable, Iterator

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
