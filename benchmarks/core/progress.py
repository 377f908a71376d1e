"""Progress of long work: a line every few seconds, suitable for logs. Imports no torch."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Report = Callable[[str], None]
"""Takes a line of progress."""
SECONDS = 5.0
"""Time from one line to the next."""


class Progress:
    """Reports the progress of a long piece of work: the amount done so far, of `total` if that is known."""

    def __init__(self, report: Report, what: str = "", total: int | None = None) -> None:
        """Say nothing yet."""
        self._report, self._what, self._total = report, what, total
        self._began = self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._began

    def is_due(self) -> bool:
        """Return whether the last line is SECONDS old; if so, start counting anew."""
        due = time.monotonic() - self._last >= SECONDS
        self._last = time.monotonic() if due else self._last
        return due

    def done(self, amount: int) -> None:
        """Report that so much is done, if a line is due."""
        if self.is_due():
            of = f" of {self._total:,} ({100 * amount / self._total:.0f} %)" if self._total else ""
            self._report(f"{self._what}: {amount:,}{of}")


def to_stderr(line: str) -> None:
    """Print a line on the error stream, at once."""
    print(line, file=sys.stderr, flush=True)


def counted(what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items, and report on the error stream how many are done if it takes long."""
    progress = Progress(to_stderr, what, total)
    for number, item in enumerate(items, start=1):
        yield item
        progress.done(number)
