"""The processes of ranks: their interface, malloc's settings, and kills by the kernel. Imports no torch."""

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_json
from benchmarks.core.outcome import Outcome
from resireduce.errors import ConfigError

LIMITS = "limits.json"
POLL_SECONDS = 0.1


class RankProcess(subprocess.Popen[bytes]):
    """One rank, or the process that stands for it, or for all of them, on this machine."""

    def exit_status(self, rank: int) -> int | None:
        """Return the exit status of a rank if it has ended, negative if it was killed."""
        return self.poll()

    def complaint(self, rank: int = 0) -> str | None:
        """Return why it was not even started, in one line, if that is known."""
        return None

    def verdict(self) -> Outcome | None:
        """Return status and reason of a rank that left nothing, if more is known than its exit status says."""
        return None


Start = Callable[[Sequence[str], Mapping[str, str]], RankProcess]
"""Starts a command, given without its interpreter, with variables beside those of this process."""


def start_here(arguments: Sequence[str], variables: Mapping[str, str]) -> RankProcess:
    """Start a rank as a process of this machine."""
    environment = {**os.environ, **variables}
    # This process has no threads, for which preexec_fn would be unsafe.
    return RankProcess([sys.executable, *arguments], env=environment, preexec_fn=die_with_parent)


def wait_for(
    processes: Sequence[subprocess.Popen[bytes]],
    timeout_seconds: float,
    is_last: Callable[[], bool],
    grace_seconds: float,
) -> bool:
    """Wait until all processes have ended, for `timeout_seconds` at most; return False if that time was over before.

    Once `is_last` says so, such as when one of them has failed, they have `grace_seconds` of that time.
    """
    deadline, last = time.monotonic() + timeout_seconds, False
    while any(process.poll() is None for process in processes):
        if not last and is_last():
            last, deadline = True, min(deadline, time.monotonic() + grace_seconds)
        if time.monotonic() > deadline:
            return last
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def passing_on(ranks: Sequence[RankProcess]) -> Iterator[list[int]]:
    """Pass signals that ask this process to end on to ranks, a list that grows; yield the list of those that came."""
    came: list[int] = []

    def pass_on(number: int, _: object) -> None:
        impatient = number == signal.SIGINT and number in came
        came.append(number)
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if impatient else number)

    earlier = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


MARK = "doctor-report: "
"""Precedes each JSON report of a check: launchers prefix lines with ranks, and libraries print too."""
GRACE_SECONDS = 5.0
"""How long the others may go on once one has failed, as they wait for it in vain."""


@dataclass(frozen=True)
class Job:
    """A process to be started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path | None = None
    """Working folder; None: that of this process."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int | None
    """Exit status of the child; None if it was stopped, because its time was over or another one had failed."""
    output: str
    """Standard output and error stream, combined."""

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports; several processes may have written to one output."""
        found = []
        for part in self.output.split(MARK)[1:]:
            try:
                report, _ = json.JSONDecoder().raw_decode(part)
            except ValueError:  # cut off when its writer died
                continue
            found.append(report)
        return found


Run = Callable[[Sequence[Job], float], list[Ended]]
"""How checks start processes: `run_together`, or a stand-in."""


def run_together(jobs: Sequence[Job], timeout_seconds: float, shown: bool = False) -> list[Ended]:
    """Run the jobs at the same time, until they end or the time is over. None is left running.

    With `shown` their output goes where that of this process goes, and is not kept. Once one has failed, the others
    have GRACE_SECONDS. Raises OSError if a program is not there.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        # In memory, as no folder may be writable.
        outputs = [stack.enter_context(open(os.memfd_create("output"), "w+b")) for _ in jobs]
        try:
            for job, output in zip(jobs, outputs, strict=True):
                said = None if shown else output
                options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
                # A session of its own: children of launchers end with them, and Ctrl-C comes to this process alone.
                options |= {"start_new_session": True, "preexec_fn": die_with_parent}
                options |= {"env": dict(job.environment), "cwd": job.folder}
                processes.append(subprocess.Popen(job.command, **options))
            wait_for(processes, timeout_seconds, lambda: any(one.poll() for one in processes), GRACE_SECONDS)
        finally:
            codes = [process.poll() for process in processes]
            for process in processes:
                with suppress(ProcessLookupError):  # if it and all that it started have ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for output in outputs:
            output.seek(0)
        texts = [output.read().decode(errors="replace") for output in outputs]
        return [Ended(code, text) for code, text in zip(codes, texts, strict=True)]


def report(values: Mapping[str, Any]) -> None:
    """Send a report to the process that started this one, in one write, so that lines of ranks do not mix."""
    os.write(1, f"{MARK}{json.dumps(values)}\n".encode())


HERE: Sequence[Sequence[str]] = ([],)
"""The one node that is this machine."""


def measure(
    name: str,
    settings: Any,
    ranks: int = 1,
    nodes: Sequence[Sequence[str]] = HERE,
    environment: Mapping[str, str] | None = None,
    quiet_seconds: float | None = None,
    cure: str = "",
    variables: Mapping[str, str] | None = None,
) -> list[Any]:
    """Run a measurement of `benchmarks.training.measure_rank` on `settings`, plain values; return what each rank found.

    The `ranks` fill the `nodes`, each the beginning of a command line that runs there, in `environment` (None: that of
    this process) with `variables` beside it. With `quiet_seconds` they may take so long, and nothing of what they say
    is shown. Raises ConfigError if a rank fails, with its last line, or with the `cure`.
    """
    with tempfile.TemporaryDirectory(prefix=f"resireduce-{name}-") as place:
        folder, jobs = Path(place), list[Job]()
        save_json(settings, folder / "settings.json")
        for rank in range(ranks):
            line = [*nodes[rank * len(nodes) // ranks], sys.executable, "-m", "benchmarks.training.measure_rank"]
            own = {**(os.environ if environment is None else environment), **place_variables(rank, ranks)}
            jobs.append(Job([*line, name, place], own | dict(variables or {})))
        ended = run_together(jobs, quiet_seconds or math.inf, shown=quiet_seconds is None)
        if bad := next((one for one in sorted(ended, key=lambda one: one.code is None) if one.code != 0), None):
            said = [line.strip() for line in bad.output.splitlines() if line.strip()]
            how = how_ended(bad.code) if bad.code else f"was not done after {quiet_seconds:g} s"
            raise ConfigError(said[-1] if said else f"{name}: it {how}; {cure or 'the lines above say why'}")
        return [load_json(folder / f"rank{rank}.json") for rank in range(ranks)]


def place_variables(rank: int, ranks: int) -> dict[str, str]:
    """Return the variables that tell a rank which of `ranks` on this machine it is."""
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    # All ranks are on this machine: gloo need not look up the address of its name.
    return {name: str(value) for name, value in place.items()} | {"GLOO_SOCKET_IFNAME": "lo"}


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, even of SIGKILL. Call it between fork and exec."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def how_ended(code: int) -> str:
    """Describe the end of a process that left no result, from its return code."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    return f"{how} and left no result"


THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
MALLOC: Mapping[str, str] = {
    THRESHOLD: str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""glibc's: blocks of 1 MiB and more have pages of their own, and 32 MiB may stay free at the heap's end, since giving
memory back and asking for it again takes time; malloc would have learned that too. torch's: tensors of 2 MiB and more
use huge pages if the kernel has them, since making pages for each gradient takes time. Other systems ignore these."""

MALLOC_THAT_KEEPS: Mapping[str, str] = {
    THRESHOLD: str(1 << 34),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": "0",
}
"""For measuring time and not memory: freed memory is reused, since new pages from the system take ten times as
long."""


def with_malloc(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with malloc's settings added, except those that they or the environment `given` already set.

    By default glibc's malloc learns from the first large tensors that are freed to take such blocks from its heap,
    which seldom returns freed ones to the system: most of the memory that streamed gradients save stays resident. With
    a fixed threshold it does not learn, and every larger block has pages of its own, which are returned at once.
    """
    return {name: value for name, value in MALLOC.items() if name not in given} | dict(variables)


LAST_BYTES = 4096
"""Bytes at the end of a process's output that are kept for `said`."""


class Logged(RankProcess):
    """A process whose error stream goes to the file `log`, and is copied to this one's when it is polled."""

    def __init__(self, command: Sequence[str], log: Path, **options: Any):
        self.log, self._written, self._read = log, log.open("wb"), log.open("rb")
        self._said = b""
        super().__init__(command, stderr=self._written, **options)

    def poll(self) -> int | None:
        """Poll as Popen does, and show the output since the last poll."""
        if not self._read.closed and (new := self._read.read()):
            sys.stderr.write(new.decode(errors="replace"))
            sys.stderr.flush()
            self._said = (self._said + new)[-LAST_BYTES:]
        return super().poll()

    def said(self) -> list[str]:
        """Return the last nonempty lines of the output, without needless blanks."""
        lines = self._said.decode(errors="replace").splitlines()
        return [" ".join(line.split()) for line in lines if line.strip()]

    def close(self) -> None:
        """Show the rest of the output, and close the files; the process has ended."""
        self.poll()
        self._written.close()
        self._read.close()


CGROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


def count_oom_kills(cgroups: Path | None = CGROUPS, mount: Path = MOUNT) -> int | None:
    """Return how often the kernel has killed a process of this control group for lack of memory; None: unknown.

    Compare it before and after: ranks share the control group of the process that starts them. Both versions of control
    groups (below `mount`) are supported. Outside of any, and without `cgroups`, the whole machine is counted.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = cgroups.read_text(encoding="utf-8").splitlines() if cgroups else []
    except OSError:
        return None
    counts = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # version 2
            counts.append(_read_count(mount / name.lstrip("/") / "memory.events"))
        elif "memory" in controllers.split(","):
            counts.append(_read_count(mount / "memory" / name.lstrip("/") / "memory.oom_control"))
    known = [count for count in counts if count is not None]
    return sum(known) if known else _read_count(VMSTAT)


def _read_count(path: Path) -> int | None:
    try:
        pairs = dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return int(pairs["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
