"""What a compressor declares of itself: how its payloads meet, and what may be expected of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

Collective = Literal["all_reduce", "all_gather", "rounds"]
"""How payloads of several ranks are combined: summed elementwise, gathered, or in the rounds that made them."""


@dataclass(frozen=True)
class Momentum:
    """How a compressor wants momentum corrected: Lin et al., "Deep gradient compression", ICLR 2018, section 3."""

    factor: float
    nesterov: bool = False
    masking: bool = True
    """Whether the velocity is set to zero where it was sent (the paper's momentum factor masking)."""


class Declared:
    """What the library asks of a compressor before there is any gradient. Everything has a default."""

    collective: ClassVar[Collective] = "all_gather"
    """How payloads are combined: summed elementwise, or gathered and decompressed one after the other. With "rounds",
    the rounds have exchanged everything, and `known` is one payload, the sum of all."""

    equal_sizes: ClassVar[bool] = True
    """Whether payloads of one tensor have the same size on all ranks; otherwise only their size may differ."""

    same_draw: ClassVar[bool] = False
    """Whether all ranks must make the same random choices; otherwise each makes its own."""

    lossless: ClassVar[bool] = False
    """True if the error is always zero: then no residual is kept."""

    state_of_ranks: ClassVar[bool] = False
    """Whether its state depends on the number of ranks: with another number it starts anew."""

    turns: ClassVar[int] = 1
    """After how many steps payloads return to their first form; other than 1 if forms alternate."""

    has_rounds: ClassVar[bool] = False
    """Whether ranks make payloads together, in rounds: `agree` asks for sums."""

    source_feeds_back: ClassVar[bool] = True
    """Whether its paper or released code keeps what is not sent (error feedback); here the scheme decides that."""

    @property
    def exact(self) -> bool:
        """Whether the values sent are the gradient's own, so that sent + error = gradient bit for bit."""
        return True

    @property
    def unbiased(self) -> bool:
        """Whether the mean of what is sent, over all random choices, is the gradient."""
        return self.lossless

    @property
    def momentum(self) -> Momentum | None:
        """Momentum that is formed on each rank before compression, in place of the optimizer's, if any."""
        return None

    @property
    def varies(self) -> bool:
        """Whether the form of messages depends on the number of the step, which ranks then compare before the first."""
        return self.turns > 1

    @property
    def memory(self) -> str:
        """What decides the meaning of its state and velocities, in words: they are loaded only where this is equal."""
        return f"{type(self).__name__} with {self.momentum or 'no momentum'}"
