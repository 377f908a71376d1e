"""Lines of progress, one every few seconds. Imports no torch."""

import time

from benchmarks.data.dataset import Report

SECONDS = 3.0


class Progress:
    """Reports how far a long piece of work is."""

    def __init__(self, report: Report, what: str, total: int | None = None) -> None:
        """Say nothing yet; `total` is what `done` counts up to, if that is known."""
        self._report, self._what, self._total = report, what, total
        self._last = time.monotonic()

    def done(self, amount: int) -> None:
        """Report that so much is done, unless the last line is less than a few seconds old."""
        if time.monotonic() - self._last < SECONDS:
            return
        self._last = time.monotonic()
        of = f" of {self._total:,} ({100 * amount / self._total:.0f} %)" if self._total else ""
        self._report(f"{self._what}: {amount:,}{of}")
