"""A density that changes from step to step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from resireduce.compressors.base import Collective, Compressor, Momentum
from resireduce.errors import ConfigError
from resireduce.payload import Payload


@dataclass(frozen=True)
class Scheduled(Compressor):
    """Compresses step i as `kind` does with density `schedule(i)`; steps are counted from 0.

    All ranks must be given the same schedule: it may depend on nothing but the step.
    """

    kind: type[Compressor]
    """The compressor's class."""
    schedule: Callable[[int], float]
    """The density of each step, in (0, 1]. Raises ConfigError, in the backward pass, for another."""

    def _at(self, step: int) -> Compressor:
        return self.kind.from_density(self.schedule(step))

    @property
    def _any(self) -> Compressor:
        """What does not depend on the density."""
        return self.kind.from_density(1.0)

    @property
    def collective(self) -> Collective:  # type: ignore[override]
        """How payloads of the kind meet."""
        return self.kind.collective

    @property
    def equal_sizes(self) -> bool:  # type: ignore[override]
        """Whether payloads of the kind have one size on all ranks."""
        return self.kind.equal_sizes

    @property
    def same_draw(self) -> bool:  # type: ignore[override]
        """Whether all ranks of the kind make the same random choices."""
        return self.kind.same_draw

    @property
    def exact(self) -> bool:
        """As the kind."""
        return self._any.exact

    @property
    def momentum(self) -> Momentum | None:
        """Momentum that the kind corrects, if it does."""
        return self._any.momentum

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Raises ConfigError: a schedule is no `density`; `resireduce.distribute` is given one in its place."""
        raise ConfigError(f"density: {density!r} is not allowed for a Scheduled compressor; give it a function")

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """With this step's density."""
        return self._at(step).compress(grad, name, step)

    def sent_indices(self, payload: Payload) -> Tensor | None:
        """Those of the kind."""
        return self._any.sent_indices(payload)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """As the kind."""
        return self._any.add_(dense, payload, scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """As the kind."""
        return self._any.error_(grad, payload)
