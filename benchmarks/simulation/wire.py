"""The data sent for each tensor, and the cost of compressing it, by compressor, density, scheme and device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.simulation.cluster import Device
from benchmarks.simulation.compress_cost import Compression, compression
from benchmarks.simulation.curve import Curve
from benchmarks.simulation.grid import LOSSLESS, Case
from benchmarks.simulation.model_layers import Layers
from resireduce.merging.rules import Array
from resireduce.scheme import COMPRESSORS, load

PAYLOAD = "benchmarks.training.layer_trace:payload_of"
BUCKET_BYTES = 1 << 18
"""Small dense tensors are sent together, up to this many bytes: `resireduce.core.queue`, which imports torch."""
FLOAT_BYTES = 4

Key = tuple[Device, str, float, str]
"""Device, compressor, density and scheme."""


@dataclass(frozen=True)
class Work:
    """The work of one device with one compressor, density and scheme; arrays have one number per tensor.

    Small tensors, which are never compressed, lie in buckets. Each bucket is an all-reduce of its own, and its values
    are at the place of its last tensor.
    """

    elements: Array
    """Elements sent as the tensor's own message; 0 if it is in a bucket."""
    payload: Array
    """Bytes of that message, or of an all-reduce that takes as long as its rounds."""
    dense_bytes: Array
    """Bytes of the bucket that ends with this tensor."""
    touched: Array
    """Elements of one payload that are added to the average."""
    more: Array
    """Seconds that the scheme adds to a full residual."""
    curve: Curve
    basis: str
    gathered: bool
    ragged: bool
    lossy: bool


def works(cases: Sequence[Case], layers: Layers, micro: Sequence[Mapping[str, Any]]) -> dict[Key, Work]:
    """Return the work of each combination in `cases`; `micro`: rows of `make micro`'s record."""
    keys = {(case.cluster.device, case.compressor, case.density, case.scheme): None for case in cases}
    return {key: _work(key, layers, micro, payload_of(key[1], key[2], layers.shapes)) for key in keys}


@lru_cache(maxsize=1024)
def payload_of(compressor: str, density: float, shapes: tuple[tuple[int, ...], ...]) -> Mapping[str, Any]:
    """Return `bytes` of one rank's message for tensors of `shapes`, their `collective`, and whether all have
    `equal_sizes`, for a `compressor` at a `density`; loads torch."""
    found: Mapping[str, Any] = load(PAYLOAD)(compressor, density, shapes)
    return found


def _work(key: Key, layers: Layers, micro: Sequence[Mapping[str, Any]], sent: Mapping[str, Any]) -> Work:
    device, compressor, density, scheme = key
    lossy = compressor != LOSSLESS
    small = np.array([kind == "dense" for kind in layers.kinds])
    elements = np.where(small, 0.0, layers.elements)
    cost = compression(compressor, scheme, density, device, micro) if lossy else NO_COMPRESSION
    # Exchanging regions and gathering their sums is an all-reduce with half the bytes.
    summed = 0.5 if sent["collective"] == "rounds" else 1.0
    selects = COMPRESSORS[compressor].selects
    return Work(
        elements=elements,
        payload=np.where(small, 0.0, summed * np.array(sent["bytes"], dtype=float)),
        dense_bytes=buckets(np.where(small, FLOAT_BYTES * layers.elements, 0.0)),
        touched=elements * (density if selects else 1.0),
        more=elements * np.array([cost.more.get(kind, 0.0) for kind in layers.kinds]),
        curve=cost.curve,
        basis=cost.basis,
        gathered=sent["collective"] == "all_gather",
        ragged=not sent["equal_sizes"],
        lossy=lossy,
    )


NO_COMPRESSION = Compression(Curve.line(0.0, 0.0), {}, "nothing to do")


def buckets(nbytes: Array) -> Array:
    """Return the bytes of each bucket at its last tensor, 0 elsewhere; `nbytes`: of each tensor, 0 for none."""
    found, waiting, last = np.zeros_like(nbytes), 0.0, -1
    for place in map(int, np.flatnonzero(nbytes)):
        if waiting and waiting + nbytes[place] > BUCKET_BYTES:
            found[last], waiting = waiting, 0.0
        waiting, last = waiting + nbytes[place], place
    if waiting:
        found[last] = waiting
    return found
