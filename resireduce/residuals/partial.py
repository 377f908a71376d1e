"""A random part of each residual (paper, section 3, Fig. 3): how much of a residual is needed?"""

from collections.abc import Callable, Iterator

from torch import Tensor

from resireduce.draw import generator, one_of_each
from resireduce.residuals.base import Residual, named
from resireduce.residuals.choosing import Ratio
from resireduce.residuals.stored import Stored
from resireduce.share import share

PIECES = 16
"""Number of pieces in which the places of a large tensor are generated."""
SMALLEST = 1 << 12
"""Smallest number of places that is worth a piece of its own."""


class PartialResidual(Residual):
    """Stores a fixed random part of the elements, as a small tensor; the rest is lost.

    One element is drawn from each of k equal stretches of the flattened tensor, k = max(1, floor(ratio x n)). The draw
    is repeated, seeded by the tensor's name, whenever it is needed: only values are stored.

    Args:
        ratio: share of the elements, or {pattern of names: share}. Raises ConfigError for one outside (0, 1].
    """

    def __init__(self, *, ratio: object = 0.5, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self.ratio = Ratio("ratio", ratio)
        self._stored: dict[str, Stored] = {}
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

    def stored_for(self, name: str) -> Stored:
        """Return the stored part of tensor `name`."""
        return self._stored[name]

    def tensors(self) -> dict[str, Tensor]:
        """Return the stored part of each registered tensor, 1-D."""
        return named("partial", self._stored)

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
        size = max(SMALLEST, -(-k // PIECES))
        for first in range(0, k, size):
            last = min(first + size, k)
            yield slice(first, last), one_of_each(n, k, first, last, source, flat.device)
