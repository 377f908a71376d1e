"""Watches from outside which cells are being trained: by their processes, whatever logs and records say."""

import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

LOOK_SECONDS = 0.1
WORKING = re.compile(r"/runs/(?P<run>[^/]+)/working/(?P<cell>[^/]+)/rank(?P<rank>\d+)\.json$")


@dataclass(frozen=True)
class Training:
    """One process of a rank."""

    run: str
    cell: str
    rank: int
    pid: int
    started_at: float
    """Seconds since the epoch at which it was first seen."""


@dataclass
class Watcher:
    """Within it all processes of ranks that work in a project's folder are noted."""

    project: Path
    seen: dict[tuple[int, str], Training] = field(default_factory=dict)
    """By number and start time of the process."""
    twice: set[str] = field(default_factory=set)
    """Cells of which two processes had the same rank at the same time."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def trainings(self, run: str, cell: str) -> list[Training]:
        """Return the processes of a cell's rank 0 so far, in order."""
        found = [it for it in self.seen.values() if (it.run, it.cell, it.rank) == (run, cell, 0)]
        return sorted(found, key=lambda it: it.started_at)

    def alive(self, run: str) -> list[Training]:
        """Return the processes of a run that are there now."""
        return [self.seen[key] for key in find_ranks(self.project) if key in self.seen and self.seen[key].run == run]

    def send(self, run: str, cell: str, number: signal.Signals) -> int:
        """Send a signal to the ranks of a cell; return how many there are. SIGSTOP: time passes, they do not go on."""
        ranks = [it for it in self.alive(run) if it.cell == cell]
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, number)
        return len(ranks)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            now, places = time.time(), set()
            for key, (run, cell, rank) in find_ranks(self.project).items():
                self.seen.setdefault(key, Training(run, cell, rank, key[0], now))
                if (run, cell, rank) in places:
                    self.twice.add(f"{run}/{cell}")
                places.add((run, cell, rank))


def find_ranks(project: Path) -> dict[tuple[int, str], tuple[str, str, int]]:
    """Return run, cell and rank of each rank's process in a project, by its number and the time of its start.

    A rank that starts another program has a child for a moment that looks as itself, and is none.
    """
    found, parents = {}, {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes().decode(errors="replace").split("\0")
                if "benchmarks.training.rank" in words and "-m" in words[:2]:
                    output = words[words.index("--output") + 1]
                    place = WORKING.search(output) if Path(output).is_relative_to(project) else None
                    stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    if place:
                        parents[int(entry.name)] = int(stat[1])
                        found[int(entry.name), stat[19]] = (place["run"], place["cell"], int(place["rank"]))
            except (OSError, IndexError, ValueError):
                continue
    return {key: place for key, place in found.items() if parents[key[0]] not in parents}
