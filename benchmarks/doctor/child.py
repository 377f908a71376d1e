"""Ranks of checks: what they are started with, and how those are judged that were to meet."""

import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.doctor.finding import SLOWLY, Finding, explain, failed, last_words
from benchmarks.launching.processes import Ended, Job, Run

LAUNCHERS = ("SLURM_", "PMIX_", "PMI_", "OMPI_", "PRTE_", "HOROVOD_")
"""Prefixes of the variables by which a launcher tells a rank its place."""


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
