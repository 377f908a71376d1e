"""What the one-GPU check has found beside memory: a list for docs/gpu-check.md, from results/reference/<device>."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.analysis.gpu_records import read_devices, with_results
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import with_half
from benchmarks.analysis.readme.measured import Measured, span
from benchmarks.analysis.readme.one_gpu_block import NOT_RUN, WIDTH

COMPRESSED = "topk, baseline"
"""The case of `benchmarks micro` that is told."""
Json = Mapping[str, Any]


def one_gpu_found(measured: Measured) -> str:
    """Return a list for each GPU with records: what each group of the check has found."""
    texts = []
    for device in read_devices(measured.folder):
        folder = measured.folder / device.name
        sound = {one.cell.name for one in device.cases if one.ranks}
        steps = {group: with_results(folder, group) for group in GROUPS}
        steps["memory"] = [case for case in steps["memory"] if case["name"] in sound]
        items = [_item(group, words) for group, make in GROUPS.items() for words in make(steps[group])]
        where = textwrap.fill(f"One {device.origin}; all tables: `results/reference/{folder.name}/summary.md`.", WIDTH)
        texts += [where + "\n\n" + "\n".join(items)] if items else []
    return "\n\n".join(texts) or NOT_RUN


def _item(group: str, words: str) -> str:
    return textwrap.fill(f"- `{group}`: {words}.", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _contracts(cases: list[Json]) -> Iterator[str]:
    tests = [(name, one["outcome"]) for case in cases for name, one in case["result"]["tests"].items()]
    if tests:
        others = Counter((name.partition("[")[0], outcome) for name, outcome in tests if outcome != "passed")
        told = [f"`{name}` {outcome}" + (f" {n} times" if n > 1 else "") for (name, outcome), n in others.items()]
        yield "; ".join([f"{len(tests) - others.total()} of {len(tests)} tests passed", *told])


def _memory(cases: list[Json]) -> Iterator[str]:
    """Yield how many cells hold what was planned when they were measured, and how full they were at most."""
    ranks = [(rank["memory"], case["planned"]) for case in cases if case.get("planned") for rank in case["ranks"]]
    if ranks:
        same = sum(memory["total_bytes"] == planned["total"] for memory, planned in ranks)
        peaks = span((memory["peak_states_bytes"] / planned["peak_states"] for memory, planned in ranks), 3)
        yield (
            f"{same} of {len(ranks)} ranks hold the planned model states, to the byte; at the fullest moment they hold "
            f"{peaks} of what is planned"
        )


def _kernels(cases: list[Json]) -> Iterator[str]:
    rows = [row for case in cases for row in case["result"]["rows"]]
    if rows:
        same = sum(bool(row["same"]) for row in rows)
        others = Counter(f"{row['kernel']}, {row['dtype']}" for row in rows if not row["same"])
        told = [f"not `{name}`" + (f", {n} sizes" if n > 1 else "") for name, n in others.items()]
        text = f"{same} of {len(rows)} have the bits of plain torch, at all sizes and precisions that were run"
        yield "; ".join([text, *told])


def _micro(cases: list[Json]) -> Iterator[str]:
    """Yield for each density how fast top-k with full residuals is: ms, and beside the naive form and the bound."""
    rows = [row for case in cases for row in case["result"]["rows"] if row["case"] == COMPRESSED]
    for density, those in grouped((row["density"], row) for row in rows).items():
        figures = (
            f"{row['elements'] >> 20} Mi elements {1000 * row['least_seconds']:.2f} ms, {row['naive_ratio']:.2f} times "
            f"as fast as the naive form, {100 * row['bound_ratio']:.0f} % of the memory's bound"
            for row in those
        )
        yield f"a gradient compressed by top-k at {density:g} with its full residual: {'; '.join(figures)}"


def _throughput(cases: list[Json]) -> Iterator[str]:
    """Yield the ratios of speeds by pair of settings, with half of their 95 % intervals."""
    rows = [row for case in cases for row in case["result"]["rows"]]
    for (own, other), those in grouped(((_setting(row), _setting(row["against"])), row) for row in rows).items():
        ratios = ", ".join(f"{row['model']} {with_half(row['ratio'], row['half_width'], 3)}" for row in those)
        yield f"{own} over {other}, steps per second: {ratios}"


def _setting(row: Json) -> str:
    return "no compression" if row["compressor"] == "none" else f"`{row['scheme']}` {row['gradients']}"


def _training(cases: list[Json]) -> Iterator[str]:
    for case in cases:
        rows = case["result"]["rows"]
        values = ", ".join(f"{row['dtype']} {row['metric']:.1f}" for row in rows if row["metric"] is not None)
        yield f"{case['result']['cell']['model']}, {rows[0]['metric_name']}: {values}"


GROUPS: Mapping[str, Callable[[list[Json]], Iterator[str]]] = {
    "contracts": _contracts,
    "memory": _memory,
    "micro": _micro,
    "throughput": _throughput,
    "kernels": _kernels,
    "training": _training,
}
"""The groups of the check that are told in words; `known` is a claim."""
