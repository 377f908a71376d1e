"""Many cases at once as arrays: a row a case, a column a tensor, in the order in which gradients come."""

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
from benchmarks.simulation.wire import Key, Work
from resireduce.merging.arrivals import Array

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Settings:
    """What is the same for all cases."""

    layers: Layers
    micro: Sequence[Mapping[str, Any]] = ()
    """Rows of `make micro`'s record; without them compression takes what its bytes of memory take."""
    compute_seconds: float | None = None
    """Measured time of forward and backward pass; None: by operations."""
    own_stream: bool = False
    """Whether compression has a stream of its own, and does not delay the backward pass."""
    ragged_largest: float = 1.0
    """Largest payload of the ranks / what a plan reckons with, where payloads are of unequal sizes: all wait for it."""


@dataclass(frozen=True)
class Rows:
    """Seconds and bytes of cases; of shape (cases,) or (cases, tensors)."""

    forward: Array
    update: Array
    late: Array
    """How late the latest rank is."""
    backward: Array
    compressed: Array
    """Elements that a rank compresses of each tensor."""
    compress: Curve
    more: Array
    """Seconds that the scheme takes beside that."""
    inline: NDArray[np.bool_]
    """(cases,): whether compression delays the backward pass."""
    moved: Array
    """Bytes of dense gradients that a node sums before anything is sent."""
    in_node_latency: Array
    in_node_per_byte: Array
    latency: Array
    """Of a message with this tensor alone."""
    transfer: Array
    nbytes: Array
    copied: Array
    """Seconds to copy each into a message of several, and out of it."""
    unpack: Array
    """Seconds to decompress what all ranks have sent of it."""


def rows_of(cases: Sequence[Case], settings: Settings, known: Mapping[Key, Work]) -> Rows:
    """Return the rows of `cases`, of which `known` has what travels. Raises ConfigError for a model of which too little
    is known."""
    layers = settings.layers
    place_of = cache(paths)
    work = [known[case.cluster.device, case.compressor, case.density, case.scheme] for case in cases]
    places = [place_of(case.cluster, case.ranks, case.hierarchy) for case in cases]
    times = cache(lambda device: layers.seconds(device, settings.compute_seconds))
    update = cache(layers.update_seconds)

    def each(read: Callable[[Any], float], of: Sequence[Any]) -> Array:
        return np.array([read(one) for one in of], dtype=float)

    devices = [case.cluster.device for case in cases]
    slices, peers = each(lambda one: one.slices, places), each(lambda one: one.peers, places)
    memory = each(lambda one: one.bytes_per_second, devices)[:, None]
    whole = np.stack([one.elements for one in work])
    payload, gathered = _payload(work, settings.ragged_largest)
    latency, transfer = _messages(work, places, payload, gathered)
    dense = np.stack([one.dense_bytes for one in work])
    touched = payload + 2 * FLOAT_BYTES * np.stack([one.touched for one in work])
    received = np.where(gathered[:, None], peers[:, None], 1.0)
    launches = each(lambda one: one.launch_seconds, devices)[:, None] * received
    unpack = launches + (FLOAT_BYTES * whole + received * touched) / slices[:, None] / memory
    lossy = each(lambda one: one.lossy, work)[:, None] > 0
    return Rows(
        forward=each(lambda device: times(device)[0], devices),
        update=each(update, devices),
        late=each(_late, cases),
        backward=np.stack([times(device)[1] for device in devices]),
        compressed=np.where(lossy, whole / slices[:, None], 0.0),
        compress=Curve.together([one.curve for one in work]),
        more=np.stack([one.more for one in work]) / slices[:, None],
        inline=each(lambda case: case.hierarchy == "flat" and not settings.own_stream, cases) > 0,
        moved=np.where(whole > 0, FLOAT_BYTES * whole, dense),
        in_node_latency=each(lambda one: one.in_node.latency, places),
        in_node_per_byte=each(lambda one: one.in_node.per_byte, places),
        latency=latency,
        transfer=transfer,
        nbytes=payload + dense,
        copied=(2 + 2 * ~gathered)[:, None] * (payload + dense) / memory,
        unpack=np.where(lossy & (whole > 0), unpack, 0.0),
    )


def _late(case: Case) -> float:
    """Return the mean of the largest of as many exponentially distributed delays as there are ranks."""
    return case.cluster.jitter_seconds * float((1 / np.arange(1, case.ranks + 1)).sum())


def _payload(work: Sequence[Work], ragged_largest: float) -> tuple[Array, NDArray[np.bool_]]:
    """Return bytes of a rank's payload of each tensor, and whether payloads are gathered."""
    largest = np.array([ragged_largest if one.ragged else 1.0 for one in work])
    return np.stack([one.payload for one in work]) * largest[:, None], np.array([one.gathered for one in work])


def _messages(
    work: Sequence[Work], places: Sequence[Paths], payload: Array, gathered: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """Return latency and transfer of each tensor's message; small dense ones have all of it in their transfer.

    A gather of unequal sizes is two: of the sizes, then of the payloads.
    """
    ways = [(one.gather, one.reduce) for one in places]
    costs = np.array([[value for cost in both for value in (cost.latency, cost.per_byte)] for both in ways])
    own = np.where(gathered[:, None], costs[:, :2], costs[:, 2:])
    twice = np.array([1.0 + one.ragged for one in work])
    latency = (own[:, 0] * twice)[:, None] * (payload > 0)
    dense = np.stack([one.dense_bytes for one in work])
    beside = np.where(dense > 0, costs[:, 2, None] + costs[:, 3, None] * dense, 0.0)
    return latency, own[:, 1, None] * payload + beside
