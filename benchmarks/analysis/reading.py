"""Read the records of a run, in two processes if there are many; a missing record gives the reason instead."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.analysis.claims.sound import wrong_seconds
from benchmarks.analysis.failed import load_failed, unproven
from benchmarks.core.cell import Cell
from benchmarks.core.files import try_json
from benchmarks.core.progress import Progress, Report
from benchmarks.core.record import CellResult, RecordError

BYTES_ALONE = 100_000_000
"""Up to this many bytes of records, one process is faster than starting two."""
CHUNK = 40
"""Records that a process reads at a time."""
BULKY = ("ladder", "sampling", "difference", "phase_seconds")
"""Per-rank fields that no table needs; the record has its own."""

AGAIN = " --force"
"""Added to the command that fills a hole if a damaged record is in the way."""
STRETCHES = 400
"""Number of stretches; a multiple of those that the speed intervals of a single run use."""


@dataclass(frozen=True)
class Hole:
    """A cell of the matrix without a measurement."""

    name: str
    status: str
    reason: str
    command: str
    """The command that fills it, to be run in the root of the project."""
    doubt: str = ""
    """Why its record does not show that it ended so (`benchmarks.analysis.failed.unproven`); "" if it does."""
    record: CellResult | None = None
    """What it left, if it diverged."""

    @property
    def has_diverged(self) -> bool:
        """Whether its training is known to have diverged."""
        return self.status == "diverged" and not self.doubt

    @property
    def why(self) -> str:
        """Why there is no result; with a doubt, also why the record does not show that."""
        return f"{self.reason}; not shown: {self.doubt}" if self.doubt else self.reason


@dataclass(frozen=True)
class Doubted:
    """A record that contradicts itself in what `slim` leaves out: tables show it, claims do not count it."""

    result: CellResult
    why: str


Read = CellResult | Doubted | Hole
"""What was found of a cell."""


def read_cells(folder: Path, cells: Sequence[Cell], say: Report | None) -> dict[Cell, Read]:
    """Return the record of each cell without its bulk (`slim`), or why there is none; `say` receives the progress."""
    chunks = [(folder, cells[i : i + CHUNK]) for i in range(0, len(cells), CHUNK)]
    if _bytes_of(folder) >= BYTES_ALONE and len(os.sched_getaffinity(0)) >= 2:
        # Not forked: the caller may have threads. Breaks if its script cannot be imported again, or memory runs out.
        with suppress(BrokenProcessPool), ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            return dict(zip(cells, _told(pool.map(_read_chunk, chunks), len(cells), say), strict=True))
    return dict(zip(cells, _told(map(_read_chunk, chunks), len(cells), say), strict=True))


def _bytes_of(folder: Path) -> int:
    try:
        with os.scandir(folder / "cells") as entries:
            return sum(entry.stat().st_size for entry in entries)
    except OSError:
        return 0


def _told(chunks: Iterable[list[Read]], total: int, say: Report | None) -> Iterator[Read]:
    """Yield the items of all chunks and report progress."""
    done, progress = 0, Progress(say or (lambda line: None), "read records", total)
    for chunk in chunks:
        yield from chunk
        done += len(chunk)
        progress.done(done)


def _read_chunk(chunk: tuple[Path, Sequence[Cell]]) -> list[Read]:
    folder, cells = chunk
    config = try_json(folder / "config.json")
    on_cluster = isinstance(config, dict) and config.get("site") is not None
    return [_read(folder, cell, "--profile slurm" if on_cluster else "--cores all") for cell in cells]


def slim(result: CellResult) -> CellResult:
    """Return a record without most of its bytes: each rank's ladder, and the single seconds of more than 400 steps."""
    light = copy(result)  # skips validating it again
    per_rank = [{name: value for name, value in rank.items() if name not in BULKY} for rank in result.per_rank]
    for name, value in (("step_seconds", thin(result.step_seconds)), ("per_rank", per_rank)):
        object.__setattr__(light, name, value)
    return light


def thin(seconds: Sequence[float]) -> list[float]:
    """Return the seconds of all steps, or the means of 400 equal stretches; steps left over at the end are dropped."""
    size = len(seconds) // STRETCHES
    if size < 2:
        return list(seconds)
    return [sum(seconds[size * i : size * (i + 1)]) / size for i in range(STRETCHES)]


def _read(folder: Path, cell: Cell, start: str) -> Read:
    path = folder / "cells" / f"{cell.name}.json"
    if not path.exists():
        return _why_missing(folder, cell, start)
    try:
        result = CellResult.load(path)
    except RecordError as error:
        return _hole(folder, cell, "broken", str(error).removeprefix(f"{path}: "), start, AGAIN)
    if result.cell != cell:
        return _hole(folder, cell, "broken", f"the record is of another cell, {result.cell.name}", start, AGAIN)
    if result.status != "ok":
        return _ended(_hole(folder, cell, result.status, str(result.reason), start, AGAIN), result)
    why = wrong_seconds(result)
    return Doubted(slim(result), why) if why else slim(result)


def _why_missing(folder: Path, cell: Cell, start: str) -> Hole:
    """Return what is known of a cell without a record."""
    failed = folder / "cells" / f"{cell.name}.failed.json"
    log = folder / "logs" / f"{cell.name}.log"
    try:
        record = load_failed(failed, cell)
        status = "unfinished" if record.failure.get("interrupted") else record.status
        return _ended(_hole(folder, cell, status, f"{record.reason} (see {log})", start), record)
    except FileNotFoundError:
        pass
    except (OSError, RecordError) as error:
        reason = str(error).removeprefix(f"{failed}: ")
        return _hole(folder, cell, "error", f"{failed.name} cannot be read: {reason} (see {log})", start)
    if log.exists():
        return _hole(folder, cell, "unfinished", f"stopped before it left a record (see {log})", start)
    return _hole(folder, cell, "not run", "not run yet", start)


def _ended(hole: Hole, record: CellResult) -> Hole:
    """Return the hole of a record that did not finish, with what its record shows of that."""
    return replace(hole, doubt=unproven(record), record=slim(record) if record.status == "diverged" else None)


def _hole(folder: Path, cell: Cell, status: str, reason: str, start: str, again: str = "") -> Hole:
    config, target = (shlex.quote(str(folder / path)) for path in ("config.json", f"cells/{cell.name}.json"))
    command = f".venv/bin/snakemake {start} --configfile {config}{again} --nolock -- {target}"
    return Hole(cell.name, status, " ".join(reason.split()), command)
