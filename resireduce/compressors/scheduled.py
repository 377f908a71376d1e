"""A density that changes from step to step."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from resireduce.compressors.base import Collective, Compressor, Momentum, Rounds, State
from resireduce.core.payload import Payload
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Scheduled(Compressor):
    """Compresses step i as `kind` does with density `schedule(i)`; steps are counted from 0.

    All ranks must be given the same schedule, which may depend only on the step.
    """

    kind: type[Compressor]
    """The compressor's class."""
    schedule: Callable[[int], float]
    """The density of each step, in (0, 1]. Any other raises ConfigError, in the backward pass."""

    ranks: int = 1
    """Number of ranks; `for_world` sets it."""

    def for_world(self, world_size: int) -> "Scheduled":
        """Return this compressor as it must be for `world_size` ranks."""
        return replace(self, ranks=world_size)

    def _at(self, step: int) -> Compressor:
        return self.kind.from_density(self.schedule(step)).for_world(self.ranks)

    def _of(self, payload: Payload) -> Compressor:
        """Return the kind with the payload's density; with density 1 if the payload does not depend on its step."""
        return self._any if payload.source is None else self._at(payload.source[1])

    @property
    def _any(self) -> Compressor:
        """The kind with density 1, for everything that does not depend on the density."""
        return self.kind.from_density(1.0).for_world(self.ranks)

    @property
    def collective(self) -> Collective:  # type: ignore[override]
        """How payloads of the kind are combined."""
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
    def has_rounds(self) -> bool:  # type: ignore[override]
        """Whether ranks of the kind make payloads in rounds."""
        return self.kind.has_rounds

    @property
    def state_of_ranks(self) -> bool:  # type: ignore[override]
        """Whether the state of the kind depends on the number of ranks."""
        return self.kind.state_of_ranks

    @property
    def turns(self) -> int:  # type: ignore[override]
        """After how many steps payloads of the kind return to their first form."""
        return self.kind.turns

    @property
    def exact(self) -> bool:
        """Whether the kind sends the gradient's own values."""
        return self._any.exact

    @property
    def momentum(self) -> Momentum | None:
        """Momentum that the kind corrects, if any."""
        return self._any.momentum

    @property
    def varies(self) -> bool:
        """True: sizes depend on the number of the step."""
        return True

    @property
    def memory(self) -> str:
        """What decides the meaning of the kind's state."""
        return self._any.memory

    @classmethod
    def from_density(cls, density: float) -> Self:
        """Raise ConfigError: a `density` is not a schedule; `resireduce.distribute` takes a function instead."""
        raise ConfigError(f"density: {density!r} is not allowed for a Scheduled compressor; give it a function")

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return the payload of the kind with the density of this step."""
        return self._at(step).compress(grad, name, step)

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the kind's state of a tensor, which does not depend on the density."""
        return self._any.state(shape, like)

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        """Return the payload of the kind with the density of this step; `state` is carried on."""
        return self._at(step).compress_with(grad, name, step, state)

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Make the payload of `grad`, in the kind's rounds, with the density of this step; `state` is carried on."""
        return self._at(step).agree(grad, name, step, state)

    def learn_(self, state: State, payload: Payload) -> None:
        """Change `state` as the kind does, by `payload`, the sum of all ranks' payloads of one step."""
        self._of(payload).learn_(state, payload)

    def compresses(self, shape: torch.Size) -> bool:
        """Whether the kind compresses tensors of `shape`."""
        return self._any.compresses(shape)

    def sent_indices(self, payload: Payload) -> Tensor | None:
        """Return the flat indices that the payload holds, 1-D int64; None if it holds all."""
        return self._of(payload).sent_indices(payload)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        """Add `scale` x the decompressed payload to `dense`; return `dense`."""
        return self._of(payload).add_(dense, payload, scale)

    def combine_(self, dense: Tensor, payloads: Iterable[Payload], scale: float) -> Tensor:
        """Overwrite `dense` with the kind's combination of all ranks' payloads of one step; return `dense`."""
        found = list(payloads)
        return self._of(found[0]).combine_(dense, found, scale)

    def error_(self, grad: Tensor, payload: Payload) -> Tensor:
        """Subtract what was sent from `grad`; return what is left, in its memory."""
        return self._of(payload).error_(grad, payload)
