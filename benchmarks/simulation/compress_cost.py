"""The cost of compression: as recorded by `make micro`, or by bytes of memory where nothing was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.files import load_json
from benchmarks.simulation.cluster import Device
from benchmarks.simulation.curve import Curve
from resireduce.errors import ConfigError

MOVED = {
    "baseline": (12, 12, 12),
    "none": (4, 4, 4),
    "a": (16, 12, 12),
    "w": (16, 12, 12),
    "member": (12, 12, 12),
    "d": (12, 10, 12),
    "2d": (12, 10, 12),
    "w+2d": (16, 10, 12),
    "partial": (10, 10, 10),
}
"""Bytes of memory that a scheme must move per float32 element of grouped, specific and other tensors. Full residual:
gradient and residual are read, the residual is written. Group: its average is read too, and its running sum is read and
written. Rows: the error is read once for its norms, and a quarter of it is read and written as the residual; in
`partial` it is half, without norms."""
KINDS = ("grouped", "specific", "other")
MEASURED, BY_BYTES = "measured", "by bytes"


@dataclass(frozen=True)
class Compression:
    """The time to compress a tensor, and where it comes from."""

    curve: Curve
    """Seconds of one case by elements, for a tensor with a full residual."""
    more: dict[str, float]
    """Seconds per element that a scheme adds to that (or saves), by kind of tensor."""
    basis: str
    """MEASURED or BY_BYTES."""


def read_micro(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a record of `make micro`. Raises ConfigError for any other file."""
    try:
        rows = load_json(path)["rows"]
        fit = all({"case", "elements", "density", "least_seconds"} <= row.keys() for row in rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"micro: {path} cannot be read: {error}; make it with: python -m benchmarks micro") from None
    if not fit or not rows:
        raise ConfigError(f"micro: {path} is no record of speeds; make one with: python -m benchmarks micro")
    return list(rows)


def compression(
    compressor: str, scheme: str, density: float, device: Device, rows: Sequence[Mapping[str, Any]]
) -> Compression:
    """Return the cost of a compressor at a density, with the residuals of a scheme, on a device.

    rows: of `make micro`. If they lack the compressor with a full residual, or the scheme with top-k, bytes of memory
    are counted, which gives a lower bound: an optimistic figure.
    """
    measured = curve_of(rows, f"{compressor}, baseline", density)
    if measured is None:
        per_byte = 1 / device.bytes_per_second
        moved = dict(zip(KINDS, MOVED.get(scheme, MOVED["baseline"]), strict=True))
        full = MOVED["baseline"][0]
        return Compression(
            Curve.line(device.launch_seconds, full * per_byte),
            {kind: (bytes_each - full) * per_byte for kind, bytes_each in moved.items()},
            BY_BYTES,
        )
    return Compression(measured, _more(rows, scheme, density, device), MEASURED)


def _more(rows: Sequence[Mapping[str, Any]], scheme: str, density: float, device: Device) -> dict[str, float]:
    """Return what a scheme adds to a full residual, by kind of tensor, at the largest size measured with top-k."""
    found = {}
    own = {"grouped": scheme.removesuffix("+2d"), "specific": scheme.removeprefix("w+"), "other": scheme}
    for place, (kind, part) in enumerate(own.items()):
        moved = MOVED.get(scheme, MOVED["baseline"])[place]
        if moved == MOVED["baseline"][0]:
            found[kind] = 0.0
            continue
        full, its = (curve_of(rows, f"topk, {name}", density) for name in ("baseline", part))
        largest = max(float(row["elements"]) for row in rows)
        if full is None or its is None:
            found[kind] = (moved - MOVED["baseline"][0]) / device.bytes_per_second
        else:
            found[kind] = (_at(its, largest) - _at(full, largest)) / largest
    return found


def _at(curve: Curve, elements: float) -> float:
    return float(curve(np.array([elements]))[0])


def curve_of(rows: Sequence[Mapping[str, Any]], case: str, density: float) -> Curve | None:
    """Return the curve of a `case` of micro's `rows` at a `density`; None if it was not measured.

    Seconds are interpolated over the logarithm of the density; outside of the measured densities, the nearest counts.
    """
    its = [row for row in rows if row["case"] == case]
    densities = sorted({float(row["density"]) for row in its})
    if not densities:
        return None
    low = max((one for one in densities if one <= density), default=densities[0])
    high = min((one for one in densities if one >= density), default=densities[-1])
    share = 0.0 if low == high else math.log(density / low) / math.log(high / low)
    seconds: dict[int, float] = {}
    for weight, of in ((1 - share, low), (share, high)):
        for row in its:
            if float(row["density"]) == of:
                size = int(row["elements"])
                seconds[size] = seconds.get(size, 0.0) + weight * float(row["least_seconds"])
        if share == 0.0:
            break
    sizes = sorted(seconds)
    return Curve.through(sizes, [seconds[size] for size in sizes])
