"""Ranks that met and added up, or did not: the one judgement for all ways in which ranks reach each other."""

from collections.abc import Sequence
from typing import Any

from benchmarks.doctor.child import Ended
from benchmarks.doctor.finding import Finding, failed
from benchmarks.doctor.known import SAME_PMIX, explain, last_words


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
    reports = all_reports(ended)
    wrong = _wrong(reports, world_size)
    if not wrong and all(one.code == 0 for one in ended):
        return None
    if len(reports) == world_size and all(report["size"] == 1 for report in reports) and world_size > 1:
        return failed(check, f"{what}: {wrong}", SAME_PMIX if check == "mpi" else cure)
    output = "\n".join(one.output for one in ended)
    known = explain(output)
    said = last_words("\n".join(one.output for one in ended if one.code) or output)
    how = "not done in time" if all(one.code in (None, 0) for one in ended) else said
    if not wrong:
        how = f"right, but it did not end well: {how}"
    meaning = f"{known.meaning}: " if known else ""
    return failed(check, f"{what}: {meaning}{wrong if reports and wrong else how}", known.cure if known else cure)


def _wrong(reports: Sequence[dict[str, Any]], world_size: int) -> str | None:
    """What is wrong with the reports."""
    ranks, sizes = [report["rank"] for report in reports], {report["size"] for report in reports}
    if reports and sizes != {world_size}:
        seen = " and ".join(map(str, sorted(sizes)))
        alone = f" ({len(reports)} ranks 0)" if ranks == [0] * len(reports) else ""
        return f"ranks see a world of {seen}, not of {world_size}{alone}"
    if ranks != list(range(world_size)):
        return f"{len(reports)} of {world_size} ranks came to the end"
    bad = [report["rank"] for report in reports if not report["right"]]
    return f"the sum is wrong on rank {bad[0]}" if bad else None
