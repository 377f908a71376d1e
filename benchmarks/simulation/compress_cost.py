"""What compression costs: as `make micro` has recorded it, and by bytes of memory where nothing was measured."""

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
"""Bytes of memory that a scheme must move for each float32 element of grouped, specific and other tensors. A full
residual: the gradient and the residual are read, the residual is written. Of a group, its average is read, and its
running sum read and written. Of rows, the error is read once for its norms, and a quarter of it read and written as the
residual; half of it in `partial`, which needs no norms."""
KINDS = ("grouped", "specific", "other")
MEASURED, BY_BYTES = "measured", "by bytes"


@dataclass(frozen=True)
class Compression:
    """What the compression of a tensor takes, and where that is from."""

    curve: Curve
    """Seconds that one case takes, by the elements of a tensor with a full residual."""
    more: dict[str, float]
    """Seconds an element that a scheme takes beside that, or less, by kind of tensor."""
    basis: str
    """MEASURED or BY_BYTES."""


def read_micro(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the record of `make micro` at `path`. Raises ConfigError for another file."""
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
    """Return what a compressor takes at a density, with the residuals of a scheme, on a device.

    rows: of `make micro`; where these have neither the compressor with a full residual nor the scheme with top-k, bytes
    of memory are counted, which is the least that it can take: an optimistic figure.
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
    """Return what a scheme takes beside a full residual, by kind: at the largest size that was measured with top-k."""
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

    Between two densities that were measured seconds lie on a line over the logarithm of the density; outside of them
    they are those of the nearest.
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
