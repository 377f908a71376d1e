"""Baseline: one residual for each tensor (paper, section 2.2; Seide et al., Interspeech 2014)."""

from collections.abc import Callable

from torch import Tensor

from resireduce.kernels.packed_largest import Addend
from resireduce.residuals.base import Residual, addable, alike, named, norm_dtype
from resireduce.residuals.stored import Plain, Stored


class FullResidual(Residual):
    """Error feedback, G~ = R + G and R' = G~ - sent.

    If it is stored in the gradient's own dtype, the sum is formed in the residual's memory: the gradient is absorbed,
    and its buffer is free before anything is compressed. Streamed gradients rely on this. In another dtype the sum is
    formed in the gradient's memory, and rounded when it is stored.
    """

    def __init__(self, **options: object):
        super().__init__(**options)  # type: ignore[arg-type]
        self._stored: dict[str, Stored] = {}
        self._summing: dict[str, Plain] = {}
        """The residuals in whose memory the sum is formed, by tensor."""

    def register(self, name: str, parameter: Tensor) -> None:
        """Allocate one tensor of the parameter's shape."""
        stored = self._stored[name] = self.stored(parameter.shape, parameter)
        if isinstance(stored, Plain) and stored.values.dtype == parameter.dtype:
            self._summing[name] = stored

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        """Return G + R: in the memory of R if the two share a dtype, else in that of G."""
        if name in self._summing:
            return self._summing[name].values.add_(grad)
        return self._stored[name].add_to_(grad)

    def addends(self, grad: Tensor, name: str) -> tuple[Tensor, Addend] | None:
        """Return R of tensor `name` and `grad`, if the sum is formed in the memory of R; otherwise `grad` and R."""
        if type(self).compensate_ is not FullResidual.compensate_:
            return None
        summing = self._summing.get(name)
        return addable(grad, self._stored[name]) if summing is None else alike(summing.values, grad)

    def leaves_stored(self, name: str) -> bool:
        """Whether the sum is not formed in R's memory; False if `compensate_` is a subclass' own."""
        return name not in self._summing and type(self).compensate_ is FullResidual.compensate_

    def absorbs(self, name: str) -> bool:
        """Whether R has the gradient's own dtype, of 32 bits at least: in 16 bits a large R loses small gradients.

        False if `compensate_` is a subclass' own, which may not be called more than once a step.
        """
        own = type(self).compensate_ is FullResidual.compensate_ and name in self._summing
        return own and norm_dtype(self._summing[name].values) == self._summing[name].values.dtype

    def absorbed(self, name: str) -> Tensor:
        """Return the memory of R of tensor `name`, in which the sum is formed."""
        return self._summing[name].values

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        """Store the error, unless it is already in the residual's memory, where the sum was formed."""
        left, stored = error(), self._stored[name]
        if not (isinstance(stored, Plain) and left is stored.values):
            stored.set_(left, self.source(name, left, step))

    def stored_for(self, name: str) -> Stored:
        """Return the residual of tensor `name`, which no other tensor shares."""
        return self._stored[name]

    def tensors(self) -> dict[str, Tensor]:
        """Return the residual of each registered tensor."""
        return named("full", self._stored)
