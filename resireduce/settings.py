"""The settings of `resireduce.distribute` in one place, for code that checks, compares, plans or follows them.

Imports no torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from resireduce.errors import check_count
from resireduce.scheme import COMPRESSORS

if TYPE_CHECKING:
    import torch.distributed as dist

    from resireduce.comm.base import Communicator
    from resireduce.compressors.base import Compressor
    from resireduce.grad_scaler import GradScaler
    from resireduce.grouping import Grouping
    from resireduce.scheme import Scheme


@dataclass(frozen=True)
class Settings:
    """What a user chooses besides model and optimizer; `resireduce.distribute` documents each setting.

    Each field is a keyword of `distribute`, in the same order and with the same default, which a test compares.
    """

    scheme: "str | Scheme" = "w+2d"
    compressor: "str | Compressor" = "topk"
    density: float | Callable[[int], float] = 0.01
    backend: "str | Communicator" = "torch"
    groups: "str | Grouping | Mapping[str, object]" = "auto"
    gradients: str = "streamed"
    residual_dtype: str | None = None
    backward_passes_per_step: int = 1
    dense: Iterable[str] | None = None
    options: Mapping[str, object] | None = None
    max_grad_norm: float | None = None
    max_local_grad_norm: float | None = None
    grad_scaler: "GradScaler | None" = None
    residual_device: str | None = None
    update: str = "in_step"
    group: "dist.ProcessGroup | None" = None
    warm_up_steps: int = 0
    hierarchy: str | Sequence[Sequence[int]] = "flat"
    merge: int | str | Sequence[Sequence[str]] | None = None

    def __post_init__(self) -> None:
        """Hold what an iterator of patterns gives, which could be read only once. ConfigError for a wrong count."""
        check_count("backward_passes_per_step", self.backward_passes_per_step, 1, "passes")
        check_count("warm_up_steps", self.warm_up_steps, of="steps")
        if isinstance(self.dense, Iterator):
            object.__setattr__(self, "dense", tuple(self.dense))

    @property
    def streamed(self) -> bool:
        """Whether gradients are freed once they are compressed."""
        return self.gradients == "streamed"

    @property
    def in_backward(self) -> bool:
        """Whether the wrapped optimizer uses averages during the backward pass."""
        return self.update == "in_backward"

    @property
    def changes_density(self) -> bool:
        """Whether the share of elements that is sent follows from the number of the step."""
        if isinstance(self.compressor, str):
            return callable(self.density) and COMPRESSORS[self.compressor].selects
        return callable(self.density) and "density" in getattr(self.compressor, "__dataclass_fields__", ())

    @property
    def scaler(self) -> "GradScaler | None":
        """The scaler of the loss; None if there is none, or if it is disabled and so changes nothing."""
        return self.grad_scaler if self.grad_scaler is not None and self.grad_scaler.is_enabled() else None

    def agreed(self, **found: object) -> dict[str, object]:
        """Return the values that must be equal on all ranks, by field; `found` replaces the names that were given."""
        own = ("density", "backend", "group")  # which may differ, or the compressor has them
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in own}
        given["density"] = "by step" if self.changes_density else "fixed"  # the compressor has the number
        given |= {"options": dict(self.options or {}), "grad_scaler": type(self.grad_scaler).__name__} | found
        return {"dense": given["dense"]} | given  # first, since groups that differ follow from it
