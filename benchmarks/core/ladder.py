"""The memory ladder: one rank's bytes by several methods, from the tensors up to the whole GPU. No torch.

The rungs answer different questions and are never mixed: `docs/measuring.md` says what each contains.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How closely NVML was watched."""

    interval_seconds: float
    count: int
    largest_gap_seconds: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The gap between itemised model states and allocator, in bytes, at one step boundary with gradients."""

    allocated_bytes: int
    baseline_bytes: int
    """Allocated before the model was built."""
    states_bytes: int
    """The itemised model states that lie on the device (some optimizers keep step counters on the host)."""
    buffers_bytes: int
    """The model's buffers (batch norm)."""
    workspaces_bytes: int
    """cuBLAS workspaces, which torch allocates; 0 if this torch cannot release them."""
    rounding_bytes: int
    """Bytes that the allocator added to requests: blocks of 512 bytes, and unsplit ends of large blocks."""
    other_bytes: int
    """The rest."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All rungs of one rank."""

    rungs: tuple[Rung, ...]
    sampling: Sampling | None = None
    """None without NVML."""
    difference: Difference | None = None
    """None without a GPU."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: `ladder` (a list of rungs), `sampling`, `difference`."""
        return {
            "ladder": [rung.as_dict() for rung in self.rungs],
            "sampling": None if self.sampling is None else asdict(self.sampling),
            "difference": None if self.difference is None else asdict(self.difference),
        }


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
