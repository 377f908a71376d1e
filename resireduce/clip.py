"""Clipping by the global norm, as torch's clip_grad_norm_ does it, from the norms of the single tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resireduce.exactly import exactly


@exactly
def clip_factor(norms: Sequence[Tensor], largest: float) -> tuple[Tensor, Tensor]:
    """Return the global norm of tensors with these L2 `norms`, and the factor that limits it to `largest`.

    There must be at least one norm; the results are 0-D, on the device of the first.
    """
    norm = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    return norm, (largest / (norm + 1e-6)).clamp(max=1.0)
