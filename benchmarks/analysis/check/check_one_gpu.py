"""Does a GPU still hold what it held? Compares a one-GPU check with committed records of one. Imports no torch.

Model states must be the same to the byte. Figures of the allocator and of NVML have bands, for what torch allocates
besides, and are left out where a flag or a missing figure makes them not comparable.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.analysis.check.bands import INEXACT_PEAKS
from benchmarks.analysis.claims.planned import fewer_than_planned
from benchmarks.analysis.labels import percent
from benchmarks.analysis.one_gpu.gpu_records import MEMORY, Case, Device, read_device
from benchmarks.analysis.one_gpu.look_up import NVML_PROCESS, Unread, bytes_at
from benchmarks.analysis.one_gpu.soundness import ALLOCATED, PEAK, STATES
from resireduce.errors import ConfigError

BANDS: Mapping[str, float] = {ALLOCATED: 0.01, PEAK: INEXACT_PEAKS, NVML_PROCESS: INEXACT_PEAKS}
"""By rung, the largest relative difference that is none."""


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
    print(f"{folder}: {now.origin}\nagainst {reference}: {then.origin}")
    print("\n".join(f"Note: {note}" for note in now.notes) or "All its records are valid")
    cells = {one.cell.name: one for one in now.cases}
    good = [one for one in then.cases if one.ranks]
    wrong = [line for one in good for line in _worse(one, cells.get(one.cell.name))]
    better = [line for one in good for line in _better(one, cells.get(one.cell.name))]
    better += [line for one in good for line in _uncompared(one, cells.get(one.cell.name))]
    print("\n".join([*wrong, *better, f"{len(wrong)} of what {len(good)} cells hold is worse, or was not measured"]))
    return 1 if wrong else 0


def _sound(folder: Path) -> Device:
    device = read_device(folder)
    if not any(one.ranks for one in device.cases):
        raise ConfigError(f"check: {folder} has no valid record of a GPU: {'; '.join(device.notes) or 'no cells'}")
    return device


def _worse(then: Case, now: Case | None) -> Iterator[str]:
    if now is None or not now.ranks:
        why = "not run" if now is None else now.doubt or f"{now.status}, {now.reason}"
        yield f"  {then.cell.name}: no valid record: {why}"
        return
    yield from (f"  {then.cell.name}: {text}" for more, text in _differences(then, now) if more)


def _better(then: Case, now: Case | None) -> Iterator[str]:
    if now is not None and now.ranks:
        yield from (f"  better: {then.cell.name}: {text}" for more, text in _differences(then, now) if not more)


def _uncompared(then: Case, now: Case | None) -> Iterator[str]:
    """Yield the figures that the reference has, and that the run could not read or has with a flag."""
    if now is None or not now.ranks:
        return
    for rung in BANDS:
        with suppress(Unread):
            bytes_at(then, rung)
            try:
                bytes_at(now, rung)
            except Unread as why:
                yield f"  not compared: {why}"


def _differences(then: Case, now: Case) -> Iterator[tuple[bool, str]]:
    """Yield, for each figure beyond its band, whether it is more than before, and both in words."""
    for name in STATES:
        old, new = int(then.memory[name]), int(now.memory[name])
        few = fewer_than_planned(now.cell, name, old, new)
        if old != new:
            yield few is not None or new > old, f"{name} {few or f'{old:,} -> {new:,}'}"
    for rung, band in BANDS.items():
        try:
            old, new = bytes_at(then, rung), bytes_at(now, rung)
        except Unread:  # `_uncompared` says so
            continue
        if abs(new / old - 1) > band:
            yield new > old, f"{rung} {old:,} -> {new:,}, beyond {percent(band)}"
