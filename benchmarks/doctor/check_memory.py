"""Check memory: what is available on the machine, or within the limit of this job or container."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.doctor.finding import Finding, failed, gibibytes, not_run, ok, warning
from benchmarks.launching.processes import CGROUPS, MOUNT, memory_groups

NAME = "memory"
MEMINFO = Path("/proc/meminfo")
LEAST_BYTES = 2 << 30
"""For two ranks of a cell of the smoke matrix, including torch, and Snakemake beside them."""
ENOUGH_BYTES = 12 << 30
"""The amount that docs/results.md gives for `make run RUN=full-size`."""
NEW_FILES, OLD_FILES = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""Files with limit and usage of a control group, version 2 and version 1."""
MORE = "another machine; under Slurm --mem=16G, docker or podman run --memory=16g"


def check(meminfo: Path = MEMINFO, cgroups: Path = CGROUPS, mount: Path = MOUNT) -> list[Finding]:
    """Return one finding: the least of the machine's available memory and of what control groups leave."""
    if sys.platform != "linux":
        return [not_run(NAME, f"{sys.platform} does not say how much is available")]
    lines = (line.split() for line in meminfo.read_text(encoding="utf-8").splitlines())
    available = next(int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:")
    left = {f"{meminfo}": available, **dict(_left_in_groups(cgroups, mount))}
    where = min(left, key=lambda name: left[name])
    room = left[where]
    has = f"{gibibytes(room)} available{'' if where == str(meminfo) else f' of this job or container ({where})'}"
    if room < LEAST_BYTES:
        return [failed(NAME, f"{has}, {gibibytes(LEAST_BYTES)} is the least", MORE)]
    if room < ENOUGH_BYTES:
        return [warning(NAME, f"{has}, models of full size need {gibibytes(ENOUGH_BYTES)}", MORE)]
    return [ok(NAME, has)]


def _left_in_groups(cgroups: Path, mount: Path) -> Iterator[tuple[str, int]]:
    """Yield the memory left by this control group and those above it that have a limit, in both versions.

    In a container the mount is the group itself, while its name may still be the host's; then only the mount counts.
    """
    with suppress(OSError):
        for top, own, is_new in memory_groups(cgroups, mount):
            limit, usage = NEW_FILES if is_new else OLD_FILES
            for folder in (own, *own.parents):
                if folder.is_relative_to(top) and (left := _left(folder / limit, folder / usage)) is not None:
                    yield str(folder), left


def _left(limit: Path, usage: Path) -> int | None:
    """Return the bytes left below the limit. The file cache counts as used there, so more could be had."""
    try:
        most = limit.read_text(encoding="utf-8").strip()
        return None if most == "max" else max(0, int(most) - int(usage.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
