"""The memory of one rank as a record holds it: the moments of a step, the ladder of methods. No torch.

Moments are the bytes of each kind of tensor over one step: `bands` has for each of BANDS a list of its bytes at each
moment, equally long for all, or one number where they never change; `changes` is the number of moments before thinning,
`rank` the rank that was measured. Moments are counted in operations that make or free a tensor, not in seconds.

The ladder has one rank's bytes by several methods, from the tensors up to the whole GPU. Its rungs answer different
questions and are never mixed: `docs/measuring.md` says what each contains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    if packed == {}:
        return None
    try:
        moments = unpack_moments(packed)
        numbers = [packed["rank"], packed["changes"], *(held for moment in moments for held in moment)]
        is_right = (
            packed["bands"].keys() == BANDS.keys() and 1 <= len(moments) <= POINTS and all(map(is_count, numbers))
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        is_right = False
    if not is_right:
        return f"damaged; rank, changes and bands of {', '.join(BANDS)} with 1 to {POINTS} moments belong together"
    fullest = max(map(sum, moments))
    if peak_states_bytes not in (None, fullest):
        return f"the fullest holds {fullest} bytes, not peak_states_bytes, {peak_states_bytes}"
    return None


METHODS = {
    "model_state_itemised": "sum over the tensors held at a step boundary: parameters, gradients, residuals, optimizer",
    "allocated": "torch allocator, at a step boundary, gradients still in .grad as set_to_none=False leaves them",
    "allocated_without_gradients": "torch allocator, at a step boundary, after zero_grad(set_to_none=True)",
    "peak_allocated": "torch allocator, most allocated in training steps after warm-up",
    "peak_reserved": "torch allocator, most reserved in training steps after warm-up",
    "nvml_process": "NVML, memory of this process, sampled, most in training steps after warm-up",
    "nvml_device": "NVML, used memory of the device, sampled, most in training steps after warm-up",
    "resident": "resident set of this process (statm), at a step boundary",
    "peak_resident": "most that was resident since this process began (VmHWM, else ru_maxrss)",
}
"""Name of every rung, from the bottom up, and how it is measured. The last two are the host's memory."""
WARMUP, STEADY, EVALUATION = "warmup", "steady", "evaluation"
"""Windows of time with separate peaks: warm-up steps, the training steps after them, evaluations."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One figure of one rank, in bytes, or the reason why there is none."""

    name: str
    """One of METHODS."""
    method: str
    bytes: int | None = None
    """Includes the baseline. For peaks: that of training steps after warm-up, where it can be told apart."""
    reason: str | None = None
    """Why there is no figure, in one line; None if there is one."""
    baseline_bytes: int | None = None
    """The bytes before CUDA began (NVML), or before the model was built (all others)."""
    warmup_bytes: int | None = None
    """For peaks: the most until the end of warm-up."""
    evaluation_bytes: int | None = None
    """For peaks: the most during evaluations."""
    flags: tuple[str, ...] = ()
    """Conditions that make the figure less comparable; see `docs/measuring.md`."""

    def __post_init__(self) -> None:
        """Raise ValueError for a rung with both a figure and a reason for having none, or with neither."""
        if (self.bytes is None) == (self.reason is None):
            raise ValueError(f"rung {self.name}: bytes {self.bytes!r} and reason {self.reason!r}; give one of them")

    def as_dict(self) -> dict[str, Any]:
        """Return the rung as plain values."""
        return asdict(self) | {"flags": list(self.flags)}


def rung_problem(rung: object) -> str | None:
    """Return what is wrong with a rung given as plain values, None if all is right."""
    if not isinstance(rung, Mapping) or not isinstance(rung.get("name"), str):
        return "a rung is a mapping with a name"
    try:
        made = Rung(**{**rung, "flags": tuple(rung.get("flags") or ())})
    except (TypeError, ValueError) as error:
        return str(error)
    amounts = (made.bytes, made.baseline_bytes, made.warmup_bytes, made.evaluation_bytes)
    if any(not (amount is None or (type(amount) is int and amount >= 0)) for amount in amounts):
        return f"rung {made.name}: bytes must be whole numbers, 0 or more"
    texts = (made.method, *made.flags, *([] if made.reason is None else [made.reason]))
    if not all(isinstance(text, str) and text.strip() and "\n" not in text for text in texts):
        return f"rung {made.name}: method, reason and flags must be texts of one line"
    return None
