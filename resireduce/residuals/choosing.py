"""How much of a tensor is stored, and which of its rows and columns: shares by name, and a choice by norms."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from resireduce.errors import ConfigError, check_share
from resireduce.kernels.largest import largest_norms

NORMS = ("residual", "compensated")
"""What the norms are of: what is left after sending (the paper), or what was compressed (the released code)."""
CHOICES = ("largest", "softmax")
"""How rows and columns are chosen: by the largest norms (the paper), or drawn at random (the released code)."""


class Ratio:
    """The share of each tensor to store, in (0, 1]: one for all, or by name.

    Args:
        field: the option's name, for messages.
        value: a share, or {shell pattern of tensor names: share}, where the first match counts. Raises ConfigError for
            anything else.
    """

    def __init__(self, field: str, value: object):
        self.field = field
        by_pattern = value if isinstance(value, Mapping) else {"*": value}
        self._shares = {pattern: check_share(field, one) for pattern, one in by_pattern.items()}

    def of(self, name: str) -> float:
        """Return the share of tensor `name`. Raises ConfigError if no pattern matches it."""
        return self._shares[self._pattern_of(name)]

    def check(self, names: Collection[str]) -> None:
        """Raise ConfigError for a pattern other than '*' that decides for none of `names`, the names of all tensors."""
        used = {self._pattern_of(name) for name in names}
        idle = next((pattern for pattern in self._shares if pattern != "*" and pattern not in used), None)
        if idle is None:
            return
        tensors = f"(those are {', '.join([*names][:3])}, ...)" if names else "(there are none in this model)"
        raise ConfigError(
            f"{self.field}: the pattern {idle!r} decides for no tensor that has this share {tensors}; correct it, "
            "leave it out, or put it before those that match the same tensors"
        )

    def _pattern_of(self, name: str) -> str:
        pattern = next((pattern for pattern in self._shares if fnmatchcase(name, pattern)), None)
        if pattern is None:
            raise ConfigError(f"{self.field}: no pattern matches {name!r}; give one for '*', for all others")
        return pattern


def select(norms: Tensor, count: int, choice: str, source: torch.Generator | None) -> Tensor:
    """Return which `count` of the 1-D `norms` to keep: int32, ascending.

    choice: "largest", of equal norms those of the highest numbers; or "softmax", drawn from `source` without
    replacement with the softmax of the norms as probabilities. The draw takes the largest of norm + Gumbel noise, which
    is the same and works where probabilities underflow.
    """
    if choice == "largest":
        return largest_norms(norms, count)
    uniform = torch.rand(norms.shape, dtype=torch.float64, device=norms.device, generator=source)
    norms = norms - uniform.clamp(min=1e-300).log().neg().log()
    return torch.topk(norms, count, sorted=False).indices.sort().values.to(torch.int32)


def matrix_shape(name: str, tensor: Tensor) -> tuple[int, int]:
    """Return rows and columns of tensor `name`: its first dimension and all others. Raises ConfigError if it is 1-D."""
    if tensor.dim() < 2:
        raise ConfigError(
            f"scheme: rows of {name!r} cannot be stored, since its slice has none: it has fewer rows than a node has "
            "ranks; leave it out of the specific layers (groups=...), or give hierarchy='flat'"
        )
    return tensor.shape[0], tensor.shape[1:].numel()
