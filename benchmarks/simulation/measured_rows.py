"""Rows of cases whose passes, compression and messages are taken from a testbed's record."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.simulation.collectives import Cost, paths
from benchmarks.simulation.curve import Curve
from benchmarks.simulation.grid import Case
from benchmarks.simulation.measured_parts import GATHER, REDUCE, REDUCE_HALF, Measured
from benchmarks.simulation.rows import Rows, Settings
from benchmarks.simulation.wire import Key, Work
from resireduce.errors import ConfigError
from resireduce.merging.rules import Array


def measured_rows(rows: Rows, cases: Sequence[Case], settings: Settings, known: Any, measured: Measured) -> Rows:
    """Return `rows` of `cases`, all of one setting of a testbed, with the measured values put in.

    `known` has the data sent, by key. Raises ConfigError for values that were not measured.
    """
    passes = [measured.passes(settings.layers, case.hierarchy) for case in cases]
    forward, backward, rest = map(np.array, zip(*passes, strict=True))
    found = [_of_case(case, known[_key(case)], measured) for case in cases]
    curves: Any = {name: Curve.together([one.pop(name) for one in found]) for name in ("compress", "sending")}
    numbers: Any = {name: np.stack([one[name] for one in found]) for name in found[0]}
    return replace(
        rows,
        forward=forward,
        backward=backward,
        update=rest,
        more=np.zeros_like(rows.more),
        **curves,
        **numbers,
    )


def _key(case: Case) -> Key:
    return case.cluster.device, case.compressor, case.density, case.scheme


def _of_case(case: Case, work: Work, measured: Measured) -> dict[str, Any]:
    """Return the row fields that depend on the data that one case sends."""
    place, by_node = paths(case.cluster, case.ranks, case.hierarchy), case.hierarchy == "node"
    if work.ragged:
        raise ConfigError(f"measured: {case.compressor!r} sends payloads of unequal sizes, which are not measured")
    level = "between" if by_node else "flat"
    dense = measured.sending(level, REDUCE)
    own = dense
    if work.lossy:
        own = measured.sending(level, GATHER if work.gathered else REDUCE_HALF)
    compress, unpack = _compression(case, work, place.peers, measured)
    payload, beside = work.payload / place.slices, work.dense_bytes / place.slices
    bucket = dense.curve(beside[None])[0]
    return {
        "compress": compress,
        "unpack": unpack(work.elements / place.slices) * work.lossy,
        "payload": payload,
        "nbytes": payload + beside,
        "beside": bucket,
        "latency": own.at_once.latency * (payload > 0),
        "sending": own.curve,
        "transfer": own.at_once.per_byte * payload + bucket,
        "trailing": own.trailing,
        "busy_latency": measured.busy_share * own.processor.latency * (payload > 0),
        "busy_transfer": measured.busy_share * (own.processor.per_byte * payload + _whole(dense.processor, beside)),
        **_in_node(work, place.slices, measured if by_node else None),
        "settle": measured.sending("flat", REDUCE).in_turn.latency
        + (measured.sending("in_node", REDUCE).in_turn.latency if by_node else 0.0),
    }


def _compression(case: Case, work: Work, peers: int, measured: Measured) -> tuple[Curve, Curve]:
    """Return the times of compression and of decompression of what `peers` have sent; zero without compression."""
    if not work.lossy:
        return Curve.line(0.0, 0.0), Curve.line(0.0, 0.0)
    return measured.compression(case.compressor, case.density, peers if work.gathered else 1)


def _in_node(work: Work, slices: int, measured: Measured | None) -> dict[str, Any]:
    """Return the time and the delay of summing and gathering within a node; zero without `measured`."""
    moved = np.where(work.elements > 0, 4 * work.elements, work.dense_bytes)
    if measured is None:
        nothing = dict.fromkeys(("in_node_latency", "in_node_per_byte", "gather_latency", "gather_per_byte"), 0.0)
        return nothing | {"in_node_busy": np.zeros_like(moved)}
    summing, gathering = (measured.sending("in_node", kind) for kind in (REDUCE, GATHER))
    return {
        "in_node_latency": summing.in_turn.latency,
        "in_node_per_byte": summing.in_turn.per_byte,
        "gather_latency": gathering.in_turn.latency,
        "gather_per_byte": gathering.in_turn.per_byte / slices,
        "in_node_busy": measured.busy_share * _whole(summing.processor, moved),
    }


def _whole(cost: Cost, nbytes: Array) -> Array:
    """Return the time of a separate collective for each of `nbytes`; 0 where there are no bytes."""
    return np.where(nbytes > 0, cost.latency + cost.per_byte * nbytes, 0.0)
