"""The common base of compressors for which all ranks together decide what is sent; each names its own paper."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from resireduce.compressors.base import Collective, Compressor, Rounds, State
from resireduce.payload import Payload


class Agreeing(Compressor):
    """Makes payloads in rounds of sums over all ranks; the payloads are then summed too."""

    collective: ClassVar[Collective] = "all_reduce"
    same_draw: ClassVar[bool] = True
    has_rounds: ClassVar[bool] = True

    @abstractmethod
    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Yield what ranks are to sum or exchange, as in `Compressor`; return the resulting payload of `grad`."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return what one rank alone sends of `grad` in its first step; `name` and `step` seed random choices."""
        return self.compress_with(grad, name, step, self.state(grad.shape, grad))

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Return what one rank alone sends of `grad`, by this `state`: each round returns this rank's own input."""
        rounds = self.agree(grad, name, step, state)
        try:
            asked = next(rounds)
            while True:
                asked = rounds.send(asked if isinstance(asked, Tensor) else [asked.tensor])
        except StopIteration as made:
            payload: Payload = made.value
            return payload
