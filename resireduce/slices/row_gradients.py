"""Gradients of weights that can be made some rows at a time, from a layer's inputs and its outputs' gradients."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resireduce.exactly import exactly


class RowGradient(ABC):
    """The gradient of a weight, whose rows (dimension 0) are made on request."""

    @abstractmethod
    def rows(self, part: slice) -> Tensor:
        """Return the gradient of the rows in `part`: a new tensor, in the weight's dtype."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the activations and their gradients that this object keeps alive."""

    @abstractmethod
    def stays_below(self, limit: float) -> bool:
        """Whether all elements, and all partial sums, are certain to be smaller than `limit` in magnitude."""


@dataclass(frozen=True)
class LinearRows(RowGradient):
    """The rows for `nn.Linear`: outputs' gradients, transposed, x inputs; both have a row for each sample, and the
    weight's dtype.

    If the backward pass that makes it runs in an autocast, products have the precision that autograd's would have
    there, whenever rows are made. Autograd, too, brings them to the weight's dtype before it adds them to others.
    """

    inputs: Tensor
    outputs: Tensor
    precision: torch.dtype = field(init=False)
    """The dtype in which the product is formed."""

    def __post_init__(self) -> None:
        kind = self.inputs.device.type
        casts = torch.is_autocast_enabled(kind) and self.inputs.dtype is not torch.float64
        object.__setattr__(self, "precision", torch.get_autocast_dtype(kind) if casts else self.inputs.dtype)

    @exactly
    def rows(self, part: slice) -> Tensor:
        """Return the gradient of the weights of the outputs in `part`."""
        outputs, inputs = self.outputs[:, part].t().to(self.precision), self.inputs.to(self.precision)
        return outputs.mm(inputs).to(self.inputs.dtype)

    @property
    def nbytes(self) -> int:
        """Return the bytes of inputs and gradients."""
        return self.inputs.nbytes + self.outputs.nbytes

    def stays_below(self, limit: float) -> bool:
        """Whether the largest input x the largest gradient x the number of samples is below `limit`.

        Nothing is known if the factors are rounded to a dtype that does not reach that far.
        """
        if torch.finfo(self.precision).max < limit:
            return False
        return _largest(self.inputs) * _largest(self.outputs) * len(self.inputs) < limit


@dataclass(frozen=True)
class EmbeddingRows(RowGradient):
    """The rows for `nn.Embedding`: outputs' gradients, summed for each index; 1-D int64, -1 to skip one."""

    indices: Tensor
    outputs: Tensor
    """A matrix, with a row for each index."""
    local: Tensor
    """Scratch memory like `indices`."""

    def rows(self, part: slice) -> Tensor:
        """Return the gradient of the embeddings in `part`; indices outside it become the padding, a row more.

        On a GPU no index may be negative: with many of them it would write before the memory of the result.
        """
        count = part.stop - part.start
        local = torch.sub(self.indices, part.start, out=self.local).clamp_(-1, count).remainder_(count + 1)
        return torch.ops.aten.embedding_dense_backward(self.outputs, local, count + 1, count, False)[:count]

    @property
    def nbytes(self) -> int:
        """Return the bytes of indices, gradients and scratch memory."""
        return self.indices.nbytes + self.outputs.nbytes + self.local.nbytes

    def stays_below(self, limit: float) -> bool:
        """Whether the largest gradient x the number of indices is below `limit`."""
        return _largest(self.outputs) * len(self.indices) < limit


@dataclass(frozen=True)
class ConvolutionRows(RowGradient):
    """The rows for `nn.Conv2d` without groups: one for each channel of the output."""

    inputs: Tensor
    outputs: Tensor
    weight: Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    def rows(self, part: slice) -> Tensor:
        """Return the gradient of the weights of the channels in `part`."""
        return torch.ops.aten.convolution_backward(
            self.outputs[:, part], self.inputs, self.weight[part], None, self.stride, self.padding, self.dilation,
            False, [0, 0], 1, [False, True, False],
        )[1]  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Return the bytes of inputs and gradients."""
        return self.inputs.nbytes + self.outputs.nbytes

    def stays_below(self, limit: float) -> bool:
        """Whether the largest input x the largest gradient x the number of places is below `limit`."""
        places = self.outputs.numel() // self.outputs.shape[1]
        return _largest(self.inputs) * _largest(self.outputs) * places < limit


@dataclass(frozen=True)
class SumRows(RowGradient):
    """The rows of the sum of several gradients of one weight, and of `whole`, an existing one, if any."""

    uses: Sequence[RowGradient]
    whole: Tensor | None

    def rows(self, part: slice) -> Tensor:
        """Return the sum for the rows in `part`, the first use first."""
        first, *others = self.uses
        total = first.rows(part)
        for other in others:
            total.add_(other.rows(part))
        return (total if self.whole is None else total.add_(self.whole[part])).contiguous()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all uses."""
        return sum(use.nbytes for use in self.uses)

    def stays_below(self, limit: float) -> bool:
        """Return False: it is unknown for sums."""
        return False


@dataclass(frozen=True)
class PlannedRows(RowGradient):
    """The rows for a `parameter` without storage, which have no values."""

    parameter: Tensor

    def rows(self, part: slice) -> Tensor:
        """Return a tensor without storage, of the rows in `part`."""
        return torch.empty_like(self.parameter[part])

    @property
    def nbytes(self) -> int:
        """Return 0: there are no values."""
        return 0

    def stays_below(self, limit: float) -> bool:
        """Return True: there are no values."""
        return True


def _largest(tensor: Tensor) -> float:
    """Return the largest magnitude; NaN if there is one. On a CPU torch's norm takes 15 times as long."""
    if not tensor.numel():
        return 0.0
    least, most = torch.aminmax(tensor)
    return float(torch.maximum(most, -least))
