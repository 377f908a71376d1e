"""What compression does to gradients during training: the contraction, the cosine, and the share that is sent.

For the compensated gradient x of a tensor and its sent part Q(x), the contraction is |x - Q(x)|^2 / |x|^2 (Stich,
Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, definition 2.1): 0 if all is sent, 1 if nothing is.
The other two are the cosine of x and Q(x), and the share of elements of which anything is sent. All compressed tensors
of a step count as one vector.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from resireduce.core.optimizer import DistributedOptimizer
from resireduce.pieces import pieces
from resireduce.residuals.base import Rest

POINTS = 40
"""Approximate number of steps that are looked at."""
LEAST = 5
"""At most one in this many steps is looked at, so that the median step is not affected. Always one in an odd number:
compressors that alternate from step to step are seen in both of their states."""


COLLECTIVES = ("all_reduce", "all_gather", "gather", "all_to_all")


class Contraction:
    """Looks at one in `every` steps of this rank, beginning with the first, until `end`.

    In these steps a copy of each compensated gradient is held while it is compressed, and the error is computed even if
    the scheme drops it. The training itself does not change.

    Args:
        optimizer: made by `resireduce.distribute`; its residual and its communicator are wrapped to be looked at.
        steps: of the whole training.
    """

    def __init__(self, optimizer: DistributedOptimizer, steps: int):
        self.every = max(LEAST, steps // POINTS) | 1
        self._feedback = optimizer.feedback
        self._queue = optimizer.parts["queue"]
        self._places = optimizer.feedback.residual, optimizer.feedback.communicator, self._queue.world
        self._dense_bytes = sum(one.nbytes for one in optimizer.slots if not self._feedback.keeps_residual(one.name))
        self._points: list[dict[str, Any]] = []
        self.looks = False
        """Whether the current step is looked at."""
        self._sums = torch.zeros(0)
        self.nbytes = 0
        residual, between, world = self._places
        self._feedback.residual = _Residuals(residual, self)  # type: ignore[assignment]
        self._feedback.communicator = _Communicator(between, self)  # type: ignore[assignment]
        self._queue.world = _Communicator(world, self)

    def begin_step(self, step: int) -> None:
        """End the previous step, and look at step number `step`, counted from 0, if it is one of those."""
        self._note()
        self.looks = step % self.every == 0
        if self.looks:
            self._step, self._sums, self.nbytes = step, torch.zeros(5, dtype=torch.float64), 0

    def end(self) -> dict[str, Any]:
        """Stop looking; return the results: `every`, `dense_bytes`, and `points`, a mapping for each step seen.

        Each point has `step`, from 1; `bytes` that this rank handed to collectives; `elements` that were compressed;
        and `contraction`, `cosine` and `density`, None where there is nothing to divide by. dense_bytes: how many of
        the bytes belong to tensors that are sent uncompressed.
        """
        self._note()
        self.looks = False
        self._feedback.residual, self._feedback.communicator, self._queue.world = self._places
        return {"every": self.every, "dense_bytes": self._dense_bytes, "points": self._points}

    def compressed(self, whole: Tensor, left: Tensor) -> None:
        """Count a tensor of which `whole` was to be sent, and `left` was not."""
        flat, rest = whole.view(-1), left.view(-1)
        for piece in pieces(flat.numel()):
            x, r = flat[piece].double(), rest[piece].double()
            sums = torch.stack((x.dot(x), r.dot(r), x.dot(r), (x != r).sum().double()))
            self._sums[:4] += sums.cpu()
        self._sums[4] += flat.numel()

    def _note(self) -> None:
        if not self.looks:
            return
        whole, left, both, changed, elements = self._sums.tolist()
        sent = max(0.0, whole - 2 * both + left)
        self._points.append(
            {
                "step": self._step + 1,
                "bytes": self.nbytes,
                "elements": int(elements),
                "contraction": left / whole if whole else None,
                "cosine": (whole - both) / (whole * sent) ** 0.5 if whole * sent else None,
                "density": changed / elements if elements else None,
            }
        )


class _InPlaceOf:
    """Replaces an object, and forwards everything to it."""

    def __init__(self, inner: Any, watch: Contraction):
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Residuals(_InPlaceOf):
    """Sees each residual that is asked for."""

    def __init__(self, inner: Any, watch: Contraction):
        super().__init__(inner, watch)
        self._whole: dict[str, Tensor] = {}

    def of(self, name: str) -> Any:
        return _Residual(self._inner.of(name), self._watch, self._whole)


class _Residual(_InPlaceOf):
    """Sees each gradient when it is compensated, and what is left of it."""

    def __init__(self, inner: Any, watch: Contraction, whole: dict[str, Tensor]):
        super().__init__(inner, watch)
        self._whole = whole

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        whole: Tensor = self._inner.compensate_(grad, name)
        if self._watch.looks:
            self._whole[name] = whole.clone()
        return whole

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Any]:
        """In a step that is looked at, call `compensate_`, which sees the sum."""
        if self._watch.looks:
            return self.compensate_(grad, name), None
        found: tuple[Tensor, Any] = self._inner.addends(grad, name)
        return found

    def only_adds(self, name: str) -> bool:
        return not self._watch.looks and bool(self._inner.only_adds(name))

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        if name not in self._whole:
            self._inner.update(name, error, step)
            return
        left = error()
        self._watch.compressed(self._whole.pop(name), left)
        self._inner.update(name, lambda: left, step)

    def update_each(self, rests: Sequence[Rest], step: int) -> None:
        """Update one tensor after the other in a step that is looked at, so that `update` sees each."""
        if not self._watch.looks:
            self._inner.update_each(rests, step)
            return
        for name, rest, _ in rests:
            self.update(name, [rest].pop, step)


class _Communicator(_InPlaceOf):
    """Counts what is handed to collectives."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in COLLECTIVES:
            return found

        def counted(tensor: Tensor, *others: Any, **named: Any) -> Any:
            self._watch.nbytes += tensor.nbytes
            return found(tensor, *others, **named)

        return counted
