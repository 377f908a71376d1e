"""Say how far something is that takes long, every few seconds, on the error stream."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
EVERY_SECONDS = 5.0


def progress(what: str, items: Sequence[T]) -> Iterator[T]:
    """Go through items; after EVERY_SECONDS, and every so many again, say "what: 10 of 200"."""
    said = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - said > EVERY_SECONDS:
            said = time.monotonic()
            print(f"{what}: {number:,} of {len(items):,}", file=sys.stderr, flush=True)
