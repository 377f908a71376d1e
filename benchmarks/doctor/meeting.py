"""Ranks that met and added up, or did not: the one judgement for all ways in which ranks reach each other."""

from collections.abc import Sequence
from typing import Any

from benchmarks.doctor.child import Ended
from benchmarks.doctor.finding import Finding, failed
from benchmarks.doctor.known import SLOWLY, explain, last_words

MISSING = "ranks came to the end"


def all_reports(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return what the ranks reported, in the order of their ranks."""
    return sorted((report for one in ended for report in one.reports()), key=lambda report: int(report["rank"]))


def judge_ranks(check: str, what: str, ended: Sequence[Ended], world_size: int, cure: str) -> Finding | None:
    """Return the failure of ranks that should have added up their vectors; None if all is right.

    Args:
        check: name of the check.
        what: what was tried, for the screen.
        ended: the processes; one of them may have started several ranks.
        world_size: how many ranks there should be.
        cure: where no known failure explains it.
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
    """What is wrong with the reports."""
    ranks, sizes = [report["rank"] for report in reports], {report["size"] for report in reports}
    if reports and sizes != {world_size}:
        seen = " and ".join(map(str, sorted(sizes)))
        alone = f" ({len(reports)} ranks 0)" if ranks == [0] * len(reports) else ""
        return f"ranks see a world of {seen}, not of {world_size}{alone}"
    if ranks != list(range(world_size)):
        return f"{len(reports)} of {world_size} {MISSING}"
    bad = [report["rank"] for report in reports if not report["right"]]
    return f"the sum is wrong on rank {bad[0]}" if bad else None
