"""The memory of one step over time as a record holds it: bytes of each kind of tensor at some moments. No torch.

`bands` has for each of BANDS a list of its bytes at each moment, equally long for all, or one number where they never
change; `changes` is the number of moments before thinning, `rank` the rank that was measured. Moments are counted in
operations that make or free a tensor, not in seconds. This takes 5 to 10 KB of a record.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from resireduce.errors import is_count

BANDS = {
    "parameters": "parameters",
    "optimizer_states": "optimizer states",
    "residuals": "residuals",
    "gradients": "gradients, averages",
    "messages": "selections, messages",
}
"""Kinds of tensors, from the lowest to the highest in a picture, and the name of each for readers."""
POINTS = 240
"""Largest number of moments in a record."""


def thinned(moments: Sequence[Sequence[int]], points: int = POINTS) -> list[Sequence[int]]:
    """Return at most `points` of `moments`: the fullest in each of `points` equal stretches, in their order.

    The fullest of all moments is among them. moments: bytes of each of BANDS.
    """
    size = max(1.0, len(moments) / points)
    stretches = [moments[int(i * size) : int((i + 1) * size)] for i in range(points)]
    return [max(stretch, key=sum) for stretch in stretches if stretch]


def pack_moments(moments: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return `moments`, bytes of each of BANDS after each change within a step, as plain values for a record."""
    columns = zip(*thinned(moments), strict=True)
    bands = {name: [*column] for name, column in zip(BANDS, columns, strict=True)}
    return {
        "changes": len(moments),
        "bands": {name: held if len(set(held)) > 1 else held[0] for name, held in bands.items()},
    }


def unpack_moments(packed: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the bytes of each of BANDS at each moment of a record, in their order; [] if it has none."""
    bands = [packed["bands"][name] for name in BANDS] if packed else []
    count = max((len(held) for held in bands if isinstance(held, list)), default=1)
    columns = [held if isinstance(held, list) else [held] * count for held in bands]
    return [*zip(*columns, strict=True)]


def moments_problem(packed: Any, peak_states_bytes: int | None) -> str | None:
    """Return what is wrong with a record's moments, in one line; None if they are right or missing.

    peak_states_bytes: the total that the fullest moment must have; None is not compared.
    """
    if not isinstance(packed, dict):
        return f"{packed!r} is not a mapping"
    try:
        return _wrong(packed, peak_states_bytes) if packed else None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"damaged: {type(error).__name__}: {error}; bands are lists as long as one another, or numbers"


def _wrong(packed: Mapping[str, Any], peak_states_bytes: int | None) -> str | None:
    if packed["bands"].keys() != BANDS.keys() or not is_count(packed["rank"]) or not is_count(packed["changes"]):
        return f"damaged: rank, changes and bands of {', '.join(BANDS)} belong together"
    moments = unpack_moments(packed)
    if not 1 <= len(moments) <= POINTS or not all(is_count(held) for moment in moments for held in moment):
        return f"bands: {len(moments)} moments; allowed: 1 to {POINTS}, of whole numbers of bytes, 0 or more"
    fullest = max(map(sum, moments))
    if peak_states_bytes is not None and fullest != peak_states_bytes:
        return f"the fullest holds {fullest} bytes, not peak_states_bytes, {peak_states_bytes}"
    return None
