"""The processes of ranks: what can be asked of them, how malloc is set, whether the kernel killed one. No torch."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.core.outcome import Outcome

LIMITS = "limits.json"
POLL_SECONDS = 0.1


class RankProcess(subprocess.Popen[bytes]):
    """One rank, or what stands for it on this machine."""

    def complaint(self) -> str | None:
        """Why it was not even started, in one line, as far as it is known."""
        return None

    def verdict(self) -> Outcome | None:
        """Status and reason of a rank that left nothing, where its exit status does not say all that is known."""
        return None


Start = Callable[[Sequence[str], Mapping[str, str]], RankProcess]
"""Starts a command, without its interpreter, with variables beside those of this process."""


def start_here(arguments: Sequence[str], variables: Mapping[str, str]) -> RankProcess:
    """Start a rank as a process of this machine."""
    environment = {**os.environ, **variables}
    # This process has no threads, for which preexec_fn would be unsafe.
    return RankProcess([sys.executable, *arguments], env=environment, preexec_fn=die_with_parent)


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies, even of SIGKILL; between fork and exec."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def how_ended(code: int) -> str:
    """The end of a process that left no result, in words, from its return code."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    return f"{how} and left no result"


THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
MALLOC: Mapping[str, str] = {
    THRESHOLD: str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""glibc's: blocks of 1 MiB and more; and so much may be free at the heap's end, since to give it back and ask for it
anew takes time, which malloc would have learned too. torch's: tensors of 2 MiB and more have huge pages where the
kernel has some, since to make them anew for each gradient takes time. Other C libraries and systems take no notice."""

MALLOC_THAT_KEEPS: Mapping[str, str] = {
    THRESHOLD: str(1 << 34),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": "0",
}
"""Where time is measured and memory is not: what is freed is used again, since new pages from the system take ten times
as long."""


def with_malloc(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with those of malloc that neither they nor the environment `given` set.

    glibc's malloc, left to itself, learns from the first large tensors that are freed to take such blocks from its
    heap, from which freed ones seldom go back to the system: most of what streamed gradients save stays resident. With
    a threshold that is set it learns nothing, and every larger block has pages of its own, which go back at once.
    """
    return {name: value for name, value in MALLOC.items() if name not in given} | dict(variables)


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


CGROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


def count_oom_kills(cgroups: Path | None = CGROUPS, mount: Path = MOUNT) -> int | None:
    """How often so far the kernel killed a process of this control group, because its memory was full; None: unknown.

    Read before and after: ranks share their starter's group. Both versions of control groups are known. Where there is
    none, as at the root of a machine, and without `cgroups`, it is the count of the whole machine.
    """
    if sys.platform != "linux":
        return None
    try:
        groups = memory_groups(cgroups, mount) if cgroups else []
    except OSError:
        return None
    counts = [_read_count(own / ("memory.events" if is_new else "memory.oom_control")) for _, own, is_new in groups]
    known = [count for count in counts if count is not None]
    return sum(known) if known else _read_count(VMSTAT)


def memory_groups(cgroups: Path, mount: Path) -> list[tuple[Path, Path, bool]]:
    """Return top and own folder of this process's control groups that count memory, and whether they are of version 2.

    Raises OSError where `cgroups`, as /proc/self/cgroup, is not there.
    """
    found = []
    for line in cgroups.read_text(encoding="utf-8").splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            top = mount / "memory" if controllers else mount
            found.append((top, top / name.lstrip("/"), not controllers))
    return found


def _read_count(path: Path) -> int | None:
    try:
        pairs = dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return int(pairs["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
