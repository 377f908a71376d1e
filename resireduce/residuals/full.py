"""Residuals of one tensor each: whole, fading, of a random part, and none at all."""

from collections.abc import Callable, Iterator

from torch import Tensor

from resireduce.errors import ConfigError, is_number
from resireduce.pieces import generator, one_of_each, pieces, share
from resireduce.residuals.base import Ratio, Residual, addends_of, alike, norm_dtype
from resireduce.residuals.stored import Plain


class FullResidual(Residual):
    """Error feedback, G~ = R + G and R' = G~ - sent.

    If it is stored in the gradient's own dtype, the sum is formed in the residual's memory: the gradient is absorbed,
    and its buffer is free before anything is compressed. Streamed gradients rely on this. In another dtype the sum is
    formed in the gradient's memory, and rounded when it is stored.

    Source: Baseline: one residual for each tensor (paper, section 2.2; Seide et al., Interspeech 2014).
    """

    kind = "full"

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate one tensor of the parameter's shape."""
        self._stored[name] = self.stored(parameter.shape, parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return G + R: in the memory of R if the two share a dtype, else in that of G."""
        memory = self.memory(name)
        return self._stored[name].add_to_(grad) if memory is None else memory.add_(grad)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
        """Return R of tensor `name` and `grad`, if the sum is formed in the memory of R; otherwise `grad` and R."""
        memory = self.memory(name)
        if memory is not None:
            return (memory, grad) if alike(memory, grad) else None
        return addends_of(grad, self._stored[name])

    def memory(self, name: str) -> Tensor | None:
        """Return R of tensor `name`, if it is stored in the gradient's own dtype."""
        stored = self._stored.get(name)
        return stored.values if isinstance(stored, Plain) and stored.has_own_dtype else None

    def absorbs(self, name: str) -> bool:
        """Whether R has the gradient's own dtype, of 32 bits at least: in 16 bits a large R loses small gradients."""
        memory = self.memory(name)
        return memory is not None and norm_dtype(memory) == memory.dtype

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error, unless it is already in the residual's memory, where the sum was formed."""
        left = error()
        if left is not self.memory(name):
            self._stored[name].set_(left, self.source(name, left, step))


class DecayedResidual(FullResidual):
    """Error feedback with R' = decay x (G~ - sent), for each tensor: what is not sent counts less from step to step.

    DeMo's momentum is G~: what is sent is subtracted from it, and the rest decays. With decay 1 it is the baseline.

    Args:
        decay: more than 0, at most 1. Raises ConfigError for any other. SparseLoCo uses 0.95.

    Source: A residual that fades, as momentum does: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum
    optimization", 2024, arXiv 2411.19870, algorithm 1; Sarfi et al., "Communication efficient LLM pre-training with
    SparseLoCo", 2025.
    """

    def __init__(self, *, decay: float = 0.999, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        if not is_number(decay) or not 0 < decay <= 1:
            raise ConfigError(f"decay: {decay!r} is not allowed; give a number more than 0 and at most 1")
        self.decay = decay

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error, decayed."""
        super().update(name, lambda: error().mul_(self.decay), step)

    def restore(self, name: str, value: Tensor, step: int) -> None:
        """Store `value` of tensor `name` without decay: no step has passed."""
        super().update(name, lambda: value, step)


SMALLEST = 1 << 12
"""Smallest number of places that is worth a piece of its own."""


class PartialResidual(Residual):
    """Stores a fixed random part of the elements, as a small tensor; the rest is lost.

    One element is drawn from each of k equal stretches of the flattened tensor, k = max(1, floor(ratio x n)). The draw
    is repeated, seeded by the tensor's name, whenever it is needed: only values are stored.

    Args:
        ratio: share of the elements, or {pattern of names: share}. Raises ConfigError for one outside (0, 1].

    Source: A random part of each residual (paper, section 3, Fig. 3): how much of a residual is needed?.
    """

    def __init__(self, *, ratio: object = 0.5, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.ratio = Ratio("ratio", ratio)
        self._drawn_on: dict[str, str] = {}

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate k zeros, 1-D."""
        self._drawn_on[name] = parameter.device.type
        self._stored[name] = self.stored((self._count(name, parameter),), parameter)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Add the stored values to their places in the gradient, in place; return it."""
        flat, values = grad.view(-1), self._stored[name].read(grad.dtype)
        for piece, positions in self._places(name, flat):
            flat.index_add_(0, positions, values[piece])
        return grad

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the elements of the error at the places of the draw."""
        flat = error().view(-1)
        self._stored[name].release()
        values = flat.new_empty(self._count(name, flat))
        for piece, positions in self._places(name, flat):
            values[piece] = flat[positions]
        self._stored[name].set_(values, self.source(name, flat, step))

    def meaning(self) -> dict[str, str]:
        """Return the type of device on which the places of each tensor are drawn: another type draws others."""
        return {f"places.{name}": device for name, device in self._drawn_on.items()}

    def _count(self, name: str, tensor: Tensor) -> int:
        return share(self.ratio.of(name), tensor.numel())

    def _places(self, name: str, flat: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield pieces of what is stored, and where they belong in the tensor: int64, ascending, the same every time.

        At most a sixteenth of the places are in memory at once, since they take more memory than the values.
        """
        n, k, source = flat.numel(), self._count(name, flat), generator(flat.device, name)
        for piece in pieces(k, smallest=SMALLEST):
            yield piece, one_of_each(n, k, piece.start, piece.stop, source, flat.device)


class NoResidual(Residual):
    """Stores nothing.

    Source: No residual: what is not sent is lost (paper, section 2.2, without steps 2 and 5). It is the control that
    shows what residuals are worth.
    """

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate nothing."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return the gradient itself."""
        return grad

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, None]:
        """Return the gradient itself, to which nothing is added."""
        return grad, None

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Drop the error, without computing it."""
