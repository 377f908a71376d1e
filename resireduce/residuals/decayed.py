"""A residual that fades, as momentum does: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum optimization", 2024,
arXiv 2411.19870, algorithm 1; Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025."""

from collections.abc import Callable

from torch import Tensor

from resireduce.errors import ConfigError, is_number
from resireduce.residuals.full import FullResidual


class DecayedResidual(FullResidual):
    """Error feedback with R' = decay x (G~ - sent), for each tensor: what is not sent counts less from step to step.

    DeMo's momentum is G~: what is sent is subtracted from it, and the rest decays. With decay 1 it is the baseline.

    Args:
        decay: more than 0, at most 1. Raises ConfigError for any other. SparseLoCo uses 0.95.
    """

    def __init__(self, *, decay: float = 0.999, **options: object):
        super().__init__(**options)
        if not is_number(decay) or not 0 < decay <= 1:
            raise ConfigError(f"decay: {decay!r} is not allowed; give a number more than 0 and at most 1")
        self.decay = decay

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error, decayed."""
        super().update(name, lambda: error().mul_(self.decay), step)

    def restore(self, name: str, value: Tensor, step: int) -> None:
        """Store `value` of tensor `name` without decay: no step has passed."""
        super().update(name, lambda: value, step)
