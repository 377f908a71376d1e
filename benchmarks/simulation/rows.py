"""Many cases at once as arrays: one row per case, one column per tensor, in the order of gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.collectives import Paths, paths
from benchmarks.simulation.curve import Curve
from benchmarks.simulation.grid import Case
from benchmarks.simulation.model_layers import Layers
from benchmarks.simulation.wire import FLOAT_BYTES, Key, Work
from resireduce.merging.rules import Array

MEMORY = ("bytes_per_second", "launch_seconds")


@dataclass(frozen=True)
class Settings:
    """The settings that all cases share."""

    layers: Layers
    micro: Sequence[Mapping[str, Any]] = ()
    """Rows of `make micro`'s record; without them, compression takes the time of its memory bytes."""
    compute_seconds: float | None = None
    """Measured time of forward and backward pass; None: computed from operations."""
    own_stream: bool = False
    """Whether compression has its own stream and does not delay the backward pass."""
    ragged_largest: float = 1.0
    """Largest payload of the ranks / the planned one, if payloads differ in size, as all ranks wait for the largest."""


@dataclass(frozen=True)
class Rows:
    """Seconds and bytes of cases, of shape (cases,) or (cases, tensors)."""

    forward: Array
    update: Array
    late: Array
    """Delay of the latest rank."""
    backward: Array
    compressed: Array
    """Elements of each tensor that a rank compresses."""
    compress: Curve
    more: Array
    """Seconds that the scheme adds to that."""
    inline: NDArray[np.bool_]
    """(cases,): whether compression delays the backward pass."""
    moved: Array
    """Bytes of dense gradients that a node sums before anything is sent."""
    in_node_latency: Array
    in_node_per_byte: Array
    latency: Array
    """Seconds before the first byte of a message with only this tensor."""
    transfer: Array
    payload: Array
    """Bytes of each tensor sent in messages."""
    nbytes: Array
    """Bytes of each tensor sent in messages, with those of the bucket of small tensors that ends with it."""
    dense: Array
    """Seconds to send the tensor uncompressed in a message of its own."""
    copied: Array
    """Seconds to copy each tensor into a merged message and out of it."""
    unpack: Array
    """Seconds to decompress what all ranks sent of the tensor."""
    gather_latency: Array
    """(cases,): of the subsequent gather within a node."""
    gather_per_byte: Array
    """(cases,): per byte of a dense tensor."""
    trailing: Array
    """(cases,): seconds for which a message is still under way when the link is free for the next."""
    busy_latency: Array
    """Seconds by which a message with only this tensor delays concurrent computing, if processors are shared."""
    busy_transfer: Array
    """Seconds by which the bytes of each tensor delay concurrent computing, if processors are shared."""
    in_node_busy: Array
    """Seconds by which summing each tensor within a node delays concurrent computing, if processors are shared."""
    beside: Array
    """Seconds of the bucket of small tensors that ends with each tensor; included in its transfer."""
    sending: Curve | None
    """Measured seconds of a message by its bytes, without buckets; None: from latency and transfer."""
    settle: Array
    """(cases,): seconds of the small collectives with which ranks end a step."""


def rows_of(cases: Sequence[Case], settings: Settings, known: Mapping[Key, Work]) -> Rows:
    """Return the rows of `cases`, with the data to send from `known`. Raises ConfigError if too little is known of the
    model."""
    work = [known[case.cluster.device, case.compressor, case.density, case.scheme] for case in cases]
    place_of = cache(paths)
    places = [place_of(case.cluster, case.ranks, case.hierarchy) for case in cases]
    slices = _each(lambda one: one.slices, places)[:, None]
    lossy = _each(lambda one: one.lossy, work)[:, None] > 0
    whole = np.stack([one.elements for one in work])
    passes: Any = _passes(cases, settings)
    messages: Any = _messages(cases, work, places, settings.ragged_largest)
    return Rows(
        **passes,
        compressed=np.where(lossy, whole / slices, 0.0),
        compress=Curve.together([one.curve for one in work]),
        more=np.stack([one.more for one in work]) / slices,
        inline=np.full(len(cases), not settings.own_stream),
        in_node_latency=_each(lambda one: one.in_node.latency, places),
        in_node_per_byte=_each(lambda one: one.in_node.per_byte, places),
        gather_latency=_each(lambda one: one.in_node.latency, places),
        gather_per_byte=_each(lambda one: one.in_node.per_byte, places),
        **_measured_only(whole),
        **messages,
    )


def _measured_only(whole: Array) -> Any:
    """Return zeros for the fields that only a testbed's measurements fill."""
    single, nothing = np.zeros(len(whole)), np.zeros_like(whole)
    each = {"busy_latency": nothing, "busy_transfer": nothing, "in_node_busy": nothing}
    return each | {"trailing": single, "settle": single, "sending": None}


def _each(read: Callable[[Any], float], of: Sequence[Any]) -> Array:
    return np.array([read(one) for one in of], dtype=float)


def _passes(cases: Sequence[Case], settings: Settings) -> dict[str, Array]:
    """Return the passes that ranks compute, and how late ranks are."""
    times = cache(lambda device: settings.layers.seconds(device, settings.compute_seconds))
    update = cache(settings.layers.update_seconds)
    devices = [case.cluster.device for case in cases]
    return {
        "forward": _each(lambda device: times(device)[0], devices),
        "update": _each(update, devices),
        "late": _each(_late, cases),
        "backward": np.stack([times(device)[1] for device in devices]),
    }


def _late(case: Case) -> float:
    """Return the mean of the largest of N exponentially distributed delays, N being the number of ranks."""
    return case.cluster.jitter_seconds * float((1 / np.arange(1, case.ranks + 1)).sum())


def _messages(
    cases: Sequence[Case], work: Sequence[Work], places: Sequence[Paths], ragged_largest: float
) -> dict[str, Array]:
    """Return the cost of sending each tensor, and of what follows it; for dense buckets all of it is in their transfer.

    A gather of unequal sizes is two collectives: of the sizes, then of the payloads, for the largest of which all wait.
    """
    reduce, gather = (
        np.array([(cost.latency, cost.per_byte) for cost in costs])
        for costs in ([one.reduce for one in places], [one.gather for one in places])
    )
    gathered = _each(lambda one: one.gathered, work)[:, None] > 0
    ragged = _each(lambda one: one.ragged, work)[:, None]
    dense, whole = (np.stack([getattr(one, name) for one in work]) for name in ("dense_bytes", "elements"))
    payload = np.stack([one.payload for one in work]) * np.where(ragged > 0, ragged_largest, 1.0)
    own = np.where(gathered, gather, reduce)
    beside = np.where(dense > 0, reduce[:, :1] + reduce[:, 1:] * dense, 0.0)
    memory = _each(lambda case: case.cluster.device.bytes_per_second, cases)[:, None]
    return {
        "moved": np.where(whole > 0, FLOAT_BYTES * whole, dense),
        "latency": own[:, :1] * (1 + ragged) * (payload > 0),
        "transfer": own[:, 1:] * payload + beside,
        "beside": beside,
        "payload": payload,
        "nbytes": payload + dense,
        "dense": reduce[:, :1] + reduce[:, 1:] * FLOAT_BYTES * whole,
        "copied": np.where(gathered, 2, 4) * (payload + dense) / memory,
        "unpack": _unpack(cases, work, places, payload),
    }


def _unpack(cases: Sequence[Case], work: Sequence[Work], places: Sequence[Paths], payload: Array) -> Array:
    """Return the seconds to decompress: a launch for each received payload, and all data read and added."""
    peers = [one.peers if its.gathered else 1 for one, its in zip(places, work, strict=True)]
    received, slices = np.array(peers, dtype=float)[:, None], _each(lambda one: one.slices, places)[:, None]
    devices = [case.cluster.device for case in cases]
    memory, launch = (np.array([getattr(one, name) for one in devices])[:, None] for name in MEMORY)
    whole = np.stack([one.elements for one in work])
    touched = payload + 2 * FLOAT_BYTES * np.stack([one.touched for one in work])
    seconds = launch * received + (FLOAT_BYTES * whole + received * touched) / slices / memory
    lossy = _each(lambda one: one.lossy, work)[:, None] > 0
    return np.where(lossy & (whole > 0), seconds, 0.0)
