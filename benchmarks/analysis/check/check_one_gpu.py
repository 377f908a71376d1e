"""Does a GPU still hold what it held? Compares a one-GPU check with committed records of one. Imports no torch.

Model states must be the same to the byte. Figures of the allocator and of NVML have bands, for what torch allocates
besides, and are left out where a flag or a missing figure makes them not comparable.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.analysis.check.compare import INEXACT_PEAKS
from benchmarks.analysis.claims.sound import fewer_than_planned
from benchmarks.analysis.gpu_records import (
    ALLOCATED,
    MEMORY,
    NVML_PROCESS,
    PEAK,
    Case,
    Device,
    Unread,
    bytes_at,
    read_device,
)
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import percent, say
from benchmarks.core.record import STATE_FIELDS
from resireduce.errors import ConfigError

BANDS: Mapping[str, float] = {ALLOCATED: 0.01, PEAK: INEXACT_PEAKS, NVML_PROCESS: INEXACT_PEAKS}
"""By rung, the largest relative difference that is none."""
WORSE, BETTER, UNREAD = "worse", "better", "not compared"
"""Kinds of findings."""


def is_gpu_check(folder: Path) -> bool:
    """Return whether a folder holds the memory that a one-GPU check has measured."""
    return (folder / f"{MEMORY}.json").is_file()


def check_gpu(folder: Path, reference: Path) -> int:
    """Say which cells of the one-GPU check in `folder` hold more than those of `reference`, or have no valid record.

    Return 1 if there are any, else 0. Raises ConfigError for records of no GPU, and for those of two kinds of GPU.
    """
    now, then = _sound(folder), _sound(reference)
    if now.source["device"] != then.source["device"]:
        raise ConfigError(
            f"reference: {reference} was measured on {then.source['device']}, the run on {now.source['device']}; give "
            "that of the same kind of GPU"
        )
    say(f"{folder}: {now.origin}\nagainst {reference}: {then.origin}")
    say("\n".join(f"Note: {note}" for note in now.notes) or "All its records are valid")
    cells = {one.cell.name: one for one in now.cases}
    good = [one for one in then.cases if one.ranks]
    found = grouped(pair for one in good for pair in _findings(one, cells.get(one.cell.name)))
    wrong = found.get(WORSE, [])
    last = f"{len(wrong)} of what {len(good)} cells hold is worse, or was not measured"
    say("\n".join([*wrong, *found.get(BETTER, []), *found.get(UNREAD, []), last]))
    return 1 if wrong else 0


def _sound(folder: Path) -> Device:
    device = read_device(folder)
    if not any(one.ranks for one in device.cases):
        raise ConfigError(f"check: {folder} has no valid record of a GPU: {'; '.join(device.notes) or 'no cells'}")
    return device


def _findings(then: Case, now: Case | None) -> Iterator[tuple[str, str]]:
    """Yield each difference between two records of a cell beyond its band, and each figure that the second lacks."""
    name = then.cell.name
    if now is None or not now.ranks:
        why = "not run" if now is None else now.doubt or f"{now.status}, {now.reason}"
        yield WORSE, f"  {name}: no valid record: {why}"
        return
    for field in STATE_FIELDS:
        old, new = int(then.memory[field]), int(now.memory[field])
        few = fewer_than_planned(now.cell, field, old, new)
        if old != new:
            yield _told(name, f"{field} {few or f'{old:,} -> {new:,}'}", few is not None or new > old)
    for rung, band in BANDS.items():
        try:
            old = bytes_at(then, rung)
        except Unread:
            continue
        try:
            new = bytes_at(now, rung)
        except Unread as reason:
            yield UNREAD, f"  not compared: {reason}"
            continue
        if abs(new / old - 1) > band:
            yield _told(name, f"{rung} {old:,} -> {new:,}, beyond {percent(band)}", new > old)


def _told(name: str, text: str, is_worse: bool) -> tuple[str, str]:
    return (WORSE, f"  {name}: {text}") if is_worse else (BETTER, f"  better: {name}: {text}")
