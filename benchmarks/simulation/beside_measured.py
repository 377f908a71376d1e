"""Compare steps measured by a testbed with simulations from parts that were measured separately."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from benchmarks.analysis.table import Table
from benchmarks.simulation.grid import LOSSLESS, Case
from benchmarks.simulation.measured_parts import REDUCE, Measured
from benchmarks.simulation.measured_rows import measured_rows
from benchmarks.simulation.model_layers import Layers
from benchmarks.simulation.rows import Settings, rows_of
from benchmarks.simulation.step_time import merged, timed
from benchmarks.simulation.wire import works
from resireduce.merging import RULES, Rule
from resireduce.merging.rules import size

NEAR, APART = 0.15, 0.20
"""A simulated step is NEAR within this share; two steps are APART, and so ranked, if they differ by more."""
READING = (
    "Seconds of a training step of {model}: the median of {rounds} rounds of {steps} steps, its 95 % interval, and "
    "what is simulated from passes, compression and collectives that were measured apart, in the same run; nothing is "
    "fitted to the steps. Nodes are namespaces of one machine, whose processors all ranks share."
)
HEAD = ["Nodes x ranks", "Link", "Compressor", "Merged", "Levels", "Measured", "Simulated", "Difference"]


def beside(found: Mapping[str, Any], layers: Layers) -> list[dict[str, Any]]:
    """Return a plain record, measured and simulated, for each step in a testbed's record `found`.

    Raises ConfigError if a part of a step was not measured, and for `layers` of another model.
    """
    return [one for setting in found["settings"] for one in _setting(setting, layers, found["steps"])]


def _setting(setting: Mapping[str, Any], layers: Layers, steps: int) -> list[dict[str, Any]]:
    measured = Measured(setting["nodes"], setting["ranks_per_node"], setting["rate"], setting["inputs"])
    # Placeholder passes: measured ones replace them.
    cluster, settings, records = measured.cluster(), Settings(layers, compute_seconds=1.0), []
    meeting = measured.sending("flat", REDUCE).in_turn.latency / steps  # a round ends when all ranks have met
    for row in setting["rows"]:
        density = row["density"] if row["compressor"] != LOSSLESS else 1.0
        case = Case(cluster, cluster.ranks, row["compressor"], density, hierarchy=row["hierarchy"])
        known = works([case], layers, ())
        rows = measured_rows(rows_of([case], settings, known), [case], settings, known, measured)
        rule = rule_of(row["merge"])
        step = float(timed(rows, merged(rows, rule), rule).step[0]) + meeting
        own = {name: row[name] for name in ("compressor", "density", "hierarchy", "merge", "median", "low", "high")}
        place = {"nodes": measured.nodes, "ranks_per_node": measured.ranks_per_node, "rate": measured.rate}
        records.append(place | own | {"simulated": step, "difference": step / row["median"] - 1})
    return records


def rule_of(merge: object) -> Rule:
    """Return the simulator's rule for the merging of cells: a name, or bytes.

    The library compresses tensor by tensor, whatever is sent together. It puts all small tensors of a model with few of
    them into one bucket; hybrid then comes down to one further message.
    """
    if isinstance(merge, int):
        return Rule(partial(size, limit_bytes=merge))
    return replace(RULES["one" if merge == "hybrid" else str(merge)], compresses_messages=False)


def shares(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many `records` are NEAR, and for how many pairs of a setting that are APART the order is right."""
    near = sum(abs(one["difference"]) <= NEAR for one in records)
    pairs = [pair for pair in combinations(records, 2) if _place(pair[0]) == _place(pair[1]) and _apart(*pair)]
    right = sum((a["median"] < b["median"]) == (a["simulated"] < b["simulated"]) for a, b in pairs)
    return {"combinations": len(records), "near": near, "pairs": len(pairs), "right": right}


def _place(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["nodes"], one["ranks_per_node"], one["rate"]


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the slower of two takes more than 20 % longer."""
    low, high = sorted((one["median"], other["median"]))
    return bool(high > low * (1 + APART))


def measured_table(found: Mapping[str, Any], layers: Layers) -> Table:
    """Return the table of all steps of a testbed's record, measured beside simulated."""
    records = beside(found, layers)
    body = [_texts(one) for one in records]
    reading = READING.format(**found)
    return Table("measured", "Steps: measured beside simulated", reading, records, HEAD, body, text_columns=5)


def _texts(one: Mapping[str, Any]) -> list[str]:
    merge = f"{one['merge']:,} bytes" if isinstance(one["merge"], int) else str(one["merge"])
    return [
        f"{one['nodes']} x {one['ranks_per_node']}",
        one["rate"],
        one["compressor"],
        merge,
        one["hierarchy"],
        f"{one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})",
        f"{one['simulated']:.3f}",
        f"{100 * one['difference']:+.0f} %",
    ]


def sentence(found: Mapping[str, Any]) -> str:
    """Return the shares `found` in words."""
    return (
        f"{found['near']} of {found['combinations']} steps are simulated within {100 * NEAR:.0f} %; of "
        f"{found['pairs']} pairs of a setting that differ by more than {100 * APART:.0f} %, {found['right']} "
        "are in the right order."
    )
