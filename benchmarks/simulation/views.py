"""The table of a simulation, which says that it is simulated."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.analysis.labels import TIMES
from benchmarks.analysis.table import Table
from benchmarks.simulation.results import Result
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.wire import LOSSLESS, Case
from resireduce.scheme import COMPRESSORS

READING = (
    "Simulated, not measured: a step from the start of one forward pass to that of the next. Exposed: what of it is "
    "neither forward, backward pass nor update. Speed-up: beside the fastest without compression on as many ranks of "
    "the same cluster. Compression: as make micro measured it, or by the bytes of memory that it moves, which is the "
    "least that it can take."
)
HEAD = ["Cluster", "Compressor", "Merged", "Levels", "Ranks", "Step, ms", "Exposed, ms", "Speed-up", "Messages"]
HEAD += ["Sent, MiB", "Compression"]


def table(results: Sequence[Result], all_results: Sequence[Result]) -> Table:
    """Return the table of `results`, compared with those without compression in `all_results`."""
    dense = fastest_dense(all_results)
    body = [[*_names(one), *_numbers(one, dense.get((one.case.cluster.name, one.case.ranks)))] for one in results]
    records = [one.as_dict() for one in results]
    return Table("simulated", "Simulated steps", READING, records, HEAD, body, text_columns=4)


def best_merged(ordered: Sequence[Result]) -> list[Result]:
    """Return the first of the `ordered` results for each cluster, ranks, compressor, density, scheme and levels, and
    for each planner."""
    found: dict[tuple[Any, ...], Result] = {}
    for one in ordered:
        case = one.case
        planner = None if case.rule in RULES else case.rule
        key = (case.cluster.name, case.ranks, _compressor(case), case.hierarchy, planner)
        found.setdefault(key, one)
    return list(found.values())


def fastest_dense(results: Sequence[Result]) -> dict[tuple[str, int], float]:
    """Return the shortest step without compression, by cluster and ranks."""
    found: dict[tuple[str, int], float] = {}
    for one in results:
        if one.case.compressor == LOSSLESS:
            place = one.case.cluster.name, one.case.ranks
            found[place] = min(found.get(place, np.inf), one.step_seconds)
    return found


def name_of(case: Case) -> str:
    """Return the name of a case among others of its cluster: compressor, density, scheme, rule and levels."""
    how = "merged" if case.rule in RULES else "planned by"
    return ", ".join([_compressor(case), f"{how} {case.rule}", *(["by node"] * (case.hierarchy == "node"))])


def _compressor(case: Case) -> str:
    if case.compressor == LOSSLESS:
        return "no compression"
    scheme = "" if case.scheme == "baseline" else f" ({case.scheme})"
    return case.compressor + f" {case.density:g}" * COMPRESSORS[case.compressor].selects + scheme


def _names(one: Result) -> list[str]:
    return [one.case.cluster.name, _compressor(one.case), one.case.rule, one.case.hierarchy]


def _numbers(one: Result, dense: float | None) -> list[str]:
    faster = "" if dense is None else f"{dense / one.step_seconds:.2f} {TIMES}"
    times = [f"{1000 * seconds:.2f}" for seconds in (one.step_seconds, one.exposed_seconds)]
    return [str(one.case.ranks), *times, faster, str(one.messages), f"{one.sent_bytes / 2**20:.2f}", one.basis]
