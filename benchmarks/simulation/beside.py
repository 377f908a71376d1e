"""Compare simulations with steps that a testbed measured, and with published speeds: never a reproduction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.analysis.claims.claim import load_published
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.table import Table
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.simulation.cluster import Cluster, Cost, Device, Link, find_cluster, paths
from benchmarks.simulation.results import Passes, Rows, Settings, merged, row_of, simulate, stacked, timed
from benchmarks.simulation.rules import RULES, Rule, size
from benchmarks.simulation.wire import LOSSLESS, Case, Curve, Layers, Work, layers_of, works
from resireduce.errors import ConfigError
from resireduce.merging.rules import Array, line_through

MAKE = "make it with: python -m benchmarks measure testbed"
REDUCE, REDUCE_HALF, GATHER = "all_reduce", "all_reduce_half", "all_gather"


@dataclass(frozen=True)
class Sending:
    """The cost of one kind of collective on one level."""

    in_turn: Cost
    """From launch to completion, one at a time."""
    at_once: Cost
    """Delay of a collective for each other one under way."""
    processor: Cost
    """Time of one rank's processor."""
    curve: Curve
    """The cost at once, piecewise through the measured sizes, so that small messages are not slowed like large ones."""

    @property
    def trailing(self) -> float:
        """Seconds for which a message is still under way when the next may follow."""
        return max(self.in_turn.latency - self.at_once.latency, 0.0)


Inputs = Mapping[str, Any]
"""One setting's inputs, as saved. Ranks shared their processors while these were measured, as in the steps."""


def passes_of(inputs: Inputs, layers: Layers, hierarchy: str) -> Passes:
    """Return the forward pass, the backward pass before each gradient of `layers`, and the rest of a step.

    hierarchy: flat or node; includes the library's work for it apart from messages and compression. Raises ConfigError
    if the record is of another model.
    """
    measured = inputs["passes"][hierarchy]
    arrived = measured["arrived_seconds"]
    if missing := set(layers.names) ^ set(arrived):
        raise ConfigError(f"measured: {min(missing)!r} is not in both the record and {layers.model}; {MAKE}")
    ready = np.maximum.accumulate([arrived[name] for name in layers.names])
    forward = float(measured["forward_seconds"])
    backward = np.maximum(np.diff(ready, prepend=forward), 0.0)
    return forward, backward, float(measured["step_seconds"]) - float(ready[-1])


def compression_of(inputs: Inputs, case: Case, peers: int) -> tuple[Curve, Curve]:
    """Return the seconds, by elements, to compress a tensor and to average what `peers` ranks have sent of it.

    Raises ConfigError for a compressor that was not measured.
    """
    wanted = case.compressor, case.density
    rows = [row for row in inputs["compression"] if (row["compressor"], row["density"]) == wanted]
    if not rows:
        raise ConfigError(f"measured: compressor {wanted[0]!r} at {wanted[1]:g} is not in the record; {MAKE}")
    sizes = [row["elements"] for row in rows]
    averaging = [row["average_seconds"].get(str(peers), row["average_seconds"].get("1")) for row in rows]
    return Curve.through(sizes, [row["compress_seconds"] for row in rows]), Curve.through(sizes, averaging)


def sending_of(inputs: Inputs, level: str, kind: str) -> Sending:
    """Return the cost of collectives of a `kind` on a `level` (flat, between or in_node), per byte of a rank."""
    rows = inputs["messages"][f"{level} {kind}"]
    sizes = np.array([row["bytes"] for row in rows], dtype=float)
    seconds = {key: np.array([row[key] for row in rows]) for key in ("in_turn", "at_once", "processor")}
    in_turn, at_once, processor = (Cost(*line_through(sizes, one)) for one in seconds.values())
    rising = np.maximum.accumulate(seconds["at_once"])
    curve = Curve.through([row["bytes"] for row in rows], [float(one) for one in rising])
    return Sending(in_turn, at_once, processor, curve)


# --- The row of a case from these parts ---


def measured_row(case: Case, work: Work, layers: Layers, inputs: Inputs) -> Rows:
    """Return the row of one case of a testbed, with the measured values put in; `work`: the data that it sends.

    Where there are no more processors than ranks, a second of each rank's processor time delays the computing of all by
    ranks / processors. Raises ConfigError for values that were not measured.
    """
    if work.ragged:
        raise ConfigError(f"measured: {case.compressor!r} sends payloads of unequal sizes, which are not measured")
    place, by_node = paths(case.cluster, case.ranks, case.hierarchy), case.hierarchy == "node"
    level = "between" if by_node else "flat"
    dense = own = sending_of(inputs, level, REDUCE)
    share = case.ranks / inputs["cores"] if case.ranks >= inputs["cores"] else 0.0
    compress = unpack = Curve.line(0.0, 0.0)
    if work.lossy:
        own = sending_of(inputs, level, GATHER if work.gathered else REDUCE_HALF)
        peers = place.peers if work.gathered else 1
        compress, unpack = compression_of(inputs, case, peers)
    payload, beside = work.payload / place.slices, work.dense_bytes / place.slices
    bucket, is_sent = dense.curve(beside[None])[0], payload > 0
    busy = share * (own.processor.per_byte * payload + _whole(dense.processor, beside))
    fields: dict[str, Any] = {
        "compress": compress,
        "sending": own.curve,
        "more": np.zeros_like(payload),
        "unpack": unpack((work.elements / place.slices)[None])[0] * work.lossy,
        "payload": payload,
        "nbytes": payload + beside,
        "beside": bucket,
        "latency": own.at_once.latency * is_sent,
        "transfer": own.at_once.per_byte * payload + bucket,
        "trailing": own.trailing,
        "busy_latency": share * own.processor.latency * is_sent,
        "busy_transfer": busy,
        "settle": sending_of(inputs, "flat", REDUCE).in_turn.latency,
    }
    if by_node:
        summing, gathering = (sending_of(inputs, "in_node", kind) for kind in (REDUCE, GATHER))
        moved = np.where(work.elements > 0, 4 * work.elements, work.dense_bytes)
        fields["in_node_busy"] = share * _whole(summing.processor, moved)
        fields["settle"] += summing.in_turn.latency
        fields |= {"in_node_latency": summing.in_turn.latency, "in_node_per_byte": summing.in_turn.per_byte}
        fields["gather_latency"] = gathering.in_turn.latency
        fields["gather_per_byte"] = gathering.in_turn.per_byte / place.slices
    return stacked([row_of(case, work, passes_of(inputs, layers, case.hierarchy)) | fields])


def _whole(cost: Cost, nbytes: Array) -> Array:
    """Return the time of a separate collective for each of `nbytes`; 0 where there are no bytes."""
    return np.where(nbytes > 0, cost.latency + cost.per_byte * nbytes, 0.0)


# --- The comparison ---

NEAR, APART = 0.15, 0.20
"""A simulated step is NEAR within this share; two steps are APART, and so ranked, if they differ by more."""
READING = (
    "Seconds of a training step of {model}: the median of {rounds} rounds of {steps} steps, its 95 % interval, and "
    "what is simulated from passes, compression and collectives that were measured apart, in the same run; nothing is "
    "fitted to the steps. Nodes are namespaces of one machine, whose processors all ranks share."
)
PLACE = ("nodes", "ranks_per_node", "rate")
HEAD = ["Nodes x ranks", "Link", "Compressor", "Merged", "Levels", "Measured", "Simulated", "Difference"]


def beside(found: Mapping[str, Any], layers: Layers) -> list[dict[str, Any]]:
    """Return a plain record, measured and simulated, for each step in a testbed's record `found`."""
    return [one for setting in found["settings"] for one in _setting(setting, layers, found["steps"])]


def _setting(setting: Mapping[str, Any], layers: Layers, steps: int) -> list[dict[str, Any]]:
    place = {name: setting[name] for name in PLACE}
    inputs, records = setting["inputs"], []
    # Operations and links do not matter, as all is measured.
    copied, link = float(inputs["copied_bytes_per_second"]), Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
    device = Device(name="measured", flops_per_second=1.0, memory_bytes_per_second=copied, memory_bytes=1.0)
    cluster = Cluster(
        name="measured",
        nodes=setting["nodes"],
        ranks_per_node=setting["ranks_per_node"],
        device=device,
        in_node=link,
        between_nodes=link,
    )
    meeting = sending_of(inputs, "flat", REDUCE).in_turn.latency / steps  # a round ends when all ranks have met
    for row in setting["rows"]:
        density = row["density"] if row["compressor"] != LOSSLESS else 1.0
        case = Case(cluster, cluster.ranks, row["compressor"], density, hierarchy=row["hierarchy"])
        (work,) = works([case], layers, ()).values()
        rows, rule = measured_row(case, work, layers, inputs), rule_of(row["merge"])
        step = float(timed(rows, merged(rows, rule), rule).step[0]) + meeting
        own = {name: row[name] for name in ("compressor", "density", "hierarchy", "merge", "median", "low", "high")}
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
    settings = grouped((tuple(one[name] for name in PLACE), one) for one in records)
    pairs = [
        (a, b)
        for its in settings.values()
        for a, b in combinations(its, 2)
        if max(a["median"], b["median"]) > min(a["median"], b["median"]) * (1 + APART)
    ]
    right = sum((a["median"] < b["median"]) == (a["simulated"] < b["simulated"]) for a, b in pairs)
    return {"combinations": len(records), "near": near, "pairs": len(pairs), "right": right}


def measured_table(path: Path) -> Table:
    """Return the table of all steps in a testbed's record. Raises ConfigError for another file."""
    try:
        found = load_json(path)
        records = beside(found, layers_of(found["model"]))
    except ConfigError:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"measured: {path} cannot be read: {error!r}; {MAKE}") from None
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


# --- Published speeds of papers and READMEs beside simulations of the clusters they name ---

FILE = ROOT / "benchmarks/simulation/published.yaml"
RULE = "horovod"
"""The merging rule by which the published systems send."""
QUANTITIES = {"throughput_loss": "slower by", "throughput_gain": "faster by"}
PUBLISHED_READING = (
    "Published beside simulated, which is neither a measurement nor a reproduction: the cluster is described, what "
    "training reaches of its devices' rates is assumed, and compression takes the bytes of memory that it moves, the "
    "least that it can."
)
PUBLISHED_HEAD = ["Source", "Model", "Cluster", "Ranks", "", "Published", "Simulated"]


def published_table(find_layers: Callable[[str], Layers] = layers_of, models: Sequence[str] | None = None) -> Table:
    """Return the table of everything published, or of `models` only; the largest take a minute, tensor by tensor."""
    records = []
    for entry in yaml.safe_load(FILE.read_text(encoding="utf-8")):
        for model in entry["models"]:
            if models is None or model in models:
                records += list(_records(entry, model, Settings(find_layers(model))))
    body = [
        [
            *(one["source"], one["model"], one["cluster"], str(one["ranks"]), QUANTITIES[one["quantity"]]),
            f"{'up to ' * one['is_most']}{one['published']:g} %",
            f"{one['simulated']:.2f} %",
        ]
        for one in records
    ]
    return Table(
        "published",
        "Speed: published beside simulated",
        PUBLISHED_READING,
        records,
        PUBLISHED_HEAD,
        body,
        text_columns=3,
    )


def _records(entry: Mapping[str, Any], model: str, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield a record, in per cent, for each number of ranks of an entry of the file."""
    cluster, quantity = find_cluster(entry["cluster"]), entry["quantity"]
    for ranks in entry["ranks"]:
        cases = [Case(cluster, ranks, **entry[key], rule=RULE) for key in ("case", "beside")]
        step, other = (one.step_seconds for one in simulate(cases, settings))
        numbers = f"{entry.get('numbers')}-{model}"
        yield {
            "source": entry["source"],
            "model": model,
            "cluster": cluster.name,
            "ranks": ranks,
            "quantity": quantity,
            "published": load_published()[numbers].value if "numbers" in entry else float(entry["value"]),
            "is_most": bool(entry.get("is_most")),
            "simulated": 100 * (1 - other / step if quantity == "throughput_loss" else other / step - 1),
            "simulated_step_seconds": step,
        }
