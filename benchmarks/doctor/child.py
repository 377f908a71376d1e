"""Start processes for checks, which may crash or hang in them, and judge ranks that were to meet."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.doctor.finding import SLOWLY, Finding, explain, failed, last_words

MARK = "doctor-report: "
"""Precedes each JSON report of a process: launchers prefix lines with ranks, and libraries print too."""
GRACE_SECONDS = 5.0
"""How long the others may go on once one has failed, as they wait for it in vain."""
POLL_SECONDS = 0.02
LAUNCHERS = ("SLURM_", "PMIX_", "PMI_", "OMPI_", "PRTE_", "HOROVOD_")
"""Prefixes of the variables by which a launcher tells a rank its place."""


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


def run_together(jobs: Sequence[Job], timeout_seconds: float) -> list[Ended]:
    """Run the jobs at the same time, until they end or the time is over. None is left running.

    Raises OSError if a program is not there.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        # In memory, as no folder may be writable.
        outputs = [stack.enter_context(open(os.memfd_create("doctor"), "w+b")) for _ in jobs]
        try:
            for job, output in zip(jobs, outputs, strict=True):
                options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
                # A session of its own, so that children of launchers end with them.
                options |= {"env": dict(job.environment), "cwd": job.folder, "start_new_session": True}
                processes.append(subprocess.Popen(job.command, **options))
            deadline, lost = time.monotonic() + timeout_seconds, False
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                if not lost and any(process.poll() for process in processes):
                    lost, deadline = True, min(deadline, time.monotonic() + GRACE_SECONDS)
                time.sleep(POLL_SECONDS)
        finally:
            codes = [process.poll() for process in processes]
            for process in processes:
                with suppress(ProcessLookupError):  # if it and all that it started have ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for output in outputs:
            output.seek(0)
        said = [output.read().decode(errors="replace") for output in outputs]
        return [Ended(code, text) for code, text in zip(codes, said, strict=True)]


def report(values: Mapping[str, Any]) -> None:
    """Send a report to the process that started this one, in one write, so that lines of ranks do not mix."""
    os.write(1, f"{MARK}{json.dumps(values)}\n".encode())


def own_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without a launcher's variables, plus `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)} | more


def run_torch_ranks(backend: str, ranks: int, timeout_seconds: float, run: Run, **more: str) -> list[Ended]:
    """Have `ranks` processes sum a vector over torch.distributed, with `more` in their environments."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "benchmarks.doctor.in_child", "torch", backend, os.path.join(folder, "meet")]
        places = ({"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks))
        return run([Job(line, own_environment(**more, **place)) for place in places], timeout_seconds)


MISSING = "ranks came to the end"


def all_reports(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return the reports, in the order of ranks."""
    return sorted((report for one in ended for report in one.reports()), key=lambda report: int(report["rank"]))


def judge_ranks(check: str, what: str, ended: Sequence[Ended], world_size: int, cure: str) -> Finding | None:
    """Return the failure of ranks that should have summed their vectors; None if all is right.

    Args:
        check: name of the check.
        what: what was tried, for the screen.
        ended: the processes; one of them may have started several ranks.
        world_size: expected number of ranks.
        cure: given if no known failure explains it.
    """
    wrong = _wrong(all_reports(ended), world_size)
    broken = [one for one in ended if one.code]
    late = not broken and any(one.code is None for one in ended)
    if not (wrong or broken or late):
        return None
    known = explain("\n".join(one.output for one in ended))
    if broken and (wrong is None or wrong.endswith(MISSING)):
        wrong = last_words("\n".join(one.output for one in broken))
    meaning = f"{known.meaning}: " if known else "not done in time: " if late else ""
    cure = known.cure if known else f"{SLOWLY}; {cure}" if late else cure
    return failed(check, f"{what}: {meaning}{wrong or 'all ranks reported, and did not end'}", cure)


def _wrong(reports: Sequence[dict[str, Any]], world_size: int) -> str | None:
    """Return what is wrong with the reports; None if nothing is."""
    ranks, sizes = [report["rank"] for report in reports], {report["size"] for report in reports}
    if reports and sizes != {world_size}:
        seen = " and ".join(map(str, sorted(sizes)))
        alone = f" ({len(reports)} ranks 0)" if ranks == [0] * len(reports) else ""
        return f"ranks see a world of {seen}, not of {world_size}{alone}"
    if ranks != list(range(world_size)):
        return f"{len(reports)} of {world_size} {MISSING}"
    bad = [report["rank"] for report in reports if not report["right"]]
    return f"the sum is wrong on rank {bad[0]}" if bad else None
