"""Signum with majority vote: Bernstein et al., "signSGD with majority vote is communication efficient and fault
tolerant", ICLR 2019, algorithm 1."""

from dataclasses import dataclass

from resireduce.compressors.base import Momentum
from resireduce.compressors.signsgd import SignSGD
from resireduce.errors import ConfigError, is_number


@dataclass(frozen=True)
class Signum(SignSGD):
    """Sends the sign of every element's momentum, formed on each rank, in one bit; the majority's comes back, as with
    signSGD.

    Momentum is u <- m u + g; the paper's, m u + (1 - m) g, has the same signs. It replaces the optimizer's, which must
    be 0. For tensors that are sent dense, the momenta are averaged.
    """

    momentum_factor: float = 0.9
    """m, with 0 <= m < 1; 0 is signSGD."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a factor that cannot be used."""
        if not is_number(self.momentum_factor) or not 0 <= self.momentum_factor < 1:
            raise ConfigError(f"momentum_factor: {self.momentum_factor!r} is not allowed; give a number, 0 <= it < 1")

    @property
    def momentum(self) -> Momentum | None:
        """Return the momentum to form before signs are taken, without masking; None without a factor."""
        return Momentum(self.momentum_factor, masking=False) if self.momentum_factor else None
