"""Whether the kernel killed a process for lack of memory. Imports no torch."""

import sys
from pathlib import Path

CGROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


def count_oom_kills(cgroups: Path = CGROUPS, mount: Path = MOUNT) -> int | None:
    """How often so far the kernel killed a process of this control group, because its memory was full; None: unknown.

    Read before and after: ranks share their starter's group. Both versions of control groups are known. Where there is
    none, as at the root of a machine, it is the count of the whole machine.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = cgroups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            counts.append(_read_count(mount / path.lstrip("/") / "memory.events"))
        elif "memory" in controllers.split(","):
            counts.append(_read_count(mount / "memory" / path.lstrip("/") / "memory.oom_control"))
    known = [count for count in counts if count is not None]
    return sum(known) if known else _read_count(VMSTAT)


def count_all_oom_kills() -> int | None:
    """How often so far the kernel of this machine killed a process for lack of memory, its group's or the machine's."""
    return _read_count(VMSTAT)


def _read_count(path: Path) -> int | None:
    try:
        pairs = dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return int(pairs["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
