"""A process whose words are shown, and can be asked for: a log in a file, and no thread that reads a pipe."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runtimes.ranks import RankProcess

LAST_BYTES = 4096
"""So much of what it said is kept to be asked for."""


class Logged(RankProcess):
    """What it says on its error stream goes to a file, and comes out on this process's when it is polled.

    Args:
        command: the whole command line.
        log: the file, new.
        options: of Popen.
    """

    def __init__(self, command: Sequence[str], log: Path, **options: Any):
        self._written, self._read = log.open("wb"), log.open("rb")
        self._said = b""
        super().__init__(command, stderr=self._written, **options)

    def poll(self) -> int | None:
        """As Popen's, and shows what was said since."""
        if not self._read.closed and (new := self._read.read()):
            sys.stderr.write(new.decode(errors="replace"))
            sys.stderr.flush()
            self._said = (self._said + new)[-LAST_BYTES:]
        return super().poll()

    def said(self) -> list[str]:
        """Return the last lines that were said and are not empty, without needless blanks."""
        lines = self._said.decode(errors="replace").splitlines()
        return [" ".join(line.split()) for line in lines if line.strip()]

    def close(self) -> None:
        """Show the last of what was said, and close files; the process has ended."""
        self.poll()
        self._written.close()
        self._read.close()
