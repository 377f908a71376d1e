"""Views of a simulation: a table, one step's streams, how it scales, and files of all. All say that it is simulated."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.analysis.labels import TIMES
from benchmarks.analysis.table import Table
from benchmarks.analysis.write import to_csv, to_markdown
from benchmarks.core.files import finite, save_json, save_text, writable
from benchmarks.simulation.results import Result, one_step
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.step_time import COMPUTING, Settings, Timed
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


def pieces(case: Case, settings: Settings) -> list[dict[str, Any]]:
    """Return the busy times of streams in one step of `case`: lane, part, start and end in seconds, and a text.

    Time 0 is the start of the forward pass, or, if the step includes the next forward pass, of the backward pass. Time
    of other streams is exposed if neither the backward pass nor layers of the next forward pass hide it.
    """
    times = one_step(case, settings)
    halves, places = "next forward" in times.busy, np.flatnonzero(times.ends[0])
    forward, _ = settings.layers.seconds(case.cluster.device, settings.compute_seconds)
    update, step = settings.layers.update_seconds(case.cluster.device), float(times.step[0])
    shift = 0.0 if halves else forward
    found = [] if halves else [_piece("forward", "computes", 0.0, forward, "forward pass")]
    for lane, (starts, ends) in times.busy.items():
        for number, place in enumerate(places):
            start, end = float(starts[0, place]) + shift, float(ends[0, place]) + shift
            text = f"message {number + 1} of {len(places)}"
            if lane in COMPUTING:
                found.append(_piece(lane, "computes", start, end, text))
                continue
            cut = min(max(start, _hidden_until(times, lane, number, places) + shift), end)
            found += [_piece(lane, "hidden", start, cut, text), _piece(lane, "exposed", cut, end, text)]
    return found + ([] if halves else [_piece("update", "computes", step - update, step, "update")])


def _hidden_until(times: Timed, lane: str, number: int, places: NDArray[np.int64]) -> float:
    """Return the end of the computing that hides message `number`: of the backward pass, or of the earlier layers of
    the next forward pass."""
    if lane != "all-gather" or number + 1 == len(places):
        return float(times.computed[0])
    return float(times.busy["next forward"][1][0, places[number + 1]])


def _piece(lane: str, part: str, start: float, end: float, text: str) -> dict[str, Any]:
    return {"lane": lane, "part": part, "start_seconds": start, "end_seconds": end, "text": text}


def efficiencies(results: Sequence[Result], settings: Settings) -> list[dict[str, Any]]:
    """Return points of how training scales, for six compressors and levels: without compression, then the fastest.

    The order is that at the largest number of ranks. Each point has the fastest merging rule at its number of ranks;
    efficiency is the share of the speed of a rank that computes alone, without compression.
    """
    best: dict[str, dict[int, Result]] = {}
    for one in results:
        name = _compressor(one.case) + ", by node" * (one.case.hierarchy == "node")
        held = best.setdefault(name, {}).get(one.case.ranks)
        if held is None or one.step_seconds < held.step_seconds:
            best[name][one.case.ranks] = one
    largest = max(one.case.ranks for one in results)
    names = [name for name in best if largest in best[name]]
    names = sorted(names, key=lambda name: best[name][largest].step_seconds)
    kept = [name for name in names if name.startswith("no compression")] + names
    points = []
    for name in list(dict.fromkeys(kept))[:6]:
        for ranks, one in sorted(best[name].items()):
            device = one.case.cluster.device
            forward, backward = settings.layers.seconds(device, settings.compute_seconds)
            alone = forward + backward.sum() + settings.layers.update_seconds(device)
            text = f"merged {one.case.rule}"
            points.append({"name": name, "ranks": ranks, "efficiency": alone / one.step_seconds, "text": text})
    return points


def write_files(
    folder: Path,
    answers: Mapping[str, object],
    ordered: Sequence[Result],
    results: Sequence[Result],
    settings: Settings,
    scaled: Sequence[Result],
) -> None:
    """Write simulated.json, .csv and .md, step.svg and scaling.svg into `folder`. Raises ConfigError if this fails.

    answers: the answers to its questions. ordered: all results shown; the first is drawn as a step. results: those that
    its speed is compared with. scaled: results of one cluster on different numbers of ranks.
    """
    from benchmarks.analysis.charts import draw as pictures  # a GPU machine has nothing that draws

    writable("output", folder / "simulated.json")
    model, fastest = settings.layers.model, ordered[0].case
    save_json(finite({**answers, "results": [one.as_dict() for one in ordered]}), folder / "simulated.json")
    whole = table(ordered, results)
    save_text(to_csv(whole), folder / "simulated.csv")
    save_text(to_markdown(whole, []), folder / "simulated.md")
    title = f"Simulated: {model}, {fastest.cluster.name}, {fastest.ranks} ranks\n{name_of(fastest)}"
    save_text(pictures.step(pieces(fastest, settings), title), folder / "step.svg")
    title = f"Simulated: {model}, {scaled[0].case.cluster.name}"
    save_text(pictures.scaling(efficiencies(scaled, settings), title), folder / "scaling.svg")
