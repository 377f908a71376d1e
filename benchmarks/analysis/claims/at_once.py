"""Find trainings of a run that took place at once, by their dates and total times, with more ranks than there is room.

Their times are those of a shared machine, or their total times are longer than they took: cells of a run follow one
another as soon as there is room. Imports no torch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.analysis.claims.origins import date_of
from benchmarks.analysis.grouping import grouped
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult

SLACK_SECONDS = 2.0
"""Longest time that two trainings may seem to overlap: dates are whole seconds. In runs of one cell after another it
was up to 1.4."""


@dataclass(frozen=True)
class _Stay:
    """A training at one place: from when until when, and how much of its room it took."""

    cell: Cell
    start: float
    end: float
    load: int
    room: int


def at_once(records: Iterable[CellResult]) -> dict[Cell, str]:
    """Return, for each of these sound records whose times cannot count, which trainings shared its cores or its GPU.

    Records of several runs may be of one training. Two machines may have one name, but no two GPUs have one identifier.
    """
    found: dict[Cell, str] = {}
    trainings = {(one.cell, one.provenance.get("date"), one.wall_seconds): one for one in records}.values()
    for place, stays in grouped(pair for record in trainings for pair in _stays(record)).items():
        stays.sort(key=lambda one: one.start)
        present: list[_Stay] = []
        for stay in stays:
            present = [one for one in present if one.end > stay.start + SLACK_SECONDS]
            load = stay.load + sum(one.load for one in present)
            if present and load > stay.room:
                where = f"{place}, {load} threads or GPUs in use where there are {stay.room}"
                texts = {one.cell: _text(one, stay, where) for one in present}
                found = texts | {stay.cell: _text(present[-1], stay, where)} | found
            present.append(stay)
    return found


def _text(one: _Stay, other: _Stay, where: str) -> str:
    names = " and ".join(sorted((one.cell.name, other.cell.name)))
    return f"by their date and wall_seconds {names} ran at once on {where}: run them again one after the other"


def on_gpu(record: CellResult) -> bool:
    """Return whether a record names a GPU."""
    return record.provenance.get("device") not in (None, "cpu")


def _stays(record: CellResult) -> Iterator[tuple[str, _Stay]]:
    """Yield each place where a record was measured. One that was resumed was not there all the time."""
    source, date = record.provenance, date_of(record)
    if date is None or source.get("resumed_at_steps"):
        return
    end = date.timestamp()
    start = end - float(record.wall_seconds or 0)
    if on_gpu(record):
        given = source.get("gpu_uuids")
        for uuid in dict.fromkeys(str(one) for one in given if one) if isinstance(given, list) else ():
            yield uuid, _Stay(record.cell, start, end, 1, 1)
        return
    job = (source.get("slurm") or {}).get("job_id")  # has some of a host's cores to itself
    for host, ranks in (source.get("ranks_per_host") or {}).items():
        if isinstance(cores := source.get("cores"), int):
            place = f"{host} in job {job}" if job else host
            yield place, _Stay(record.cell, start, end, ranks * record.cell.threads, cores)
