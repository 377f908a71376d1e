"""One member's residual in place of those of a whole reusable group (paper, section 4.2, Fig. 6)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.errors import ConfigError
from resireduce.kernels.norms import l1_and_l2_norm
from resireduce.residuals.group import GroupResidual


@dataclass
class Best:
    """The error that was chosen of some members, and its norm, 0-D."""

    total: Tensor
    norm: Tensor


class MemberResidual(GroupResidual[Best]):
    """Stores the residual of the member whose L1 or L2 norm is the largest (or the smallest), and reuses it for all.

    The paper compares members this way, which led to the weights of `w`. Of equal norms the later member's is stored.

    Args:
        norm: 1 or 2. Raises ConfigError for any other.
        smallest: store the residual of the smallest norm instead.
    """

    def __init__(self, *, norm: int = 1, smallest: bool = False, **options: object):
        super().__init__(**options)
        if norm not in (1, 2):
            raise ConfigError(f"norm: {norm!r} is not allowed; give 1 or 2")
        if not isinstance(smallest, bool):
            raise ConfigError(f"smallest: {smallest!r} is not allowed; give true or false")
        self.norm, self.smallest = norm, smallest

    def fold(self, folded: Best | None, error: Tensor, name: str, room: Tensor | None) -> Best:
        """Return the better of the two errors and its norm, 0-D, without waiting for a GPU to compare them."""
        norm = l1_and_l2_norm(error)[self.norm - 1]
        if folded is None:
            return Best(error.clone(), norm)
        best, best_norm = folded.total, folded.norm
        better = norm < best_norm if self.smallest else norm > best_norm
        return Best(torch.where(better, error.to(best.dtype), best, out=best), torch.where(better, norm, best_norm))

    def finish(self, folded: Best, room: Tensor | None) -> Tensor:
        """Return the error that was chosen, as it is."""
        return folded.total
