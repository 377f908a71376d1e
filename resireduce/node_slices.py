"""How the ranks of a node share a tensor: each owns one slice of it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NodeSlices:
    """The slices of a tensor of `shape` for `count` ranks, one behind the other; the first may be one unit longer.

    A unit is a row, so that a slice of a matrix is a matrix; or an element, of a tensor with fewer rows than ranks.
    Nothing is padded but messages, and the slice of a rank for which no element is left, which is one zero.
    """

    shape: torch.Size
    """Shape of the whole tensor."""
    count: int
    """Ranks that share it."""

    @property
    def _by_rows(self) -> bool:
        return len(self.shape) > 0 and self.shape[0] >= self.count

    @property
    def sizes(self) -> list[int]:
        """Elements of the tensor that each rank owns."""
        units = self.shape[0] if self._by_rows else self.shape.numel()
        unit = self.shape[1:].numel() if self._by_rows else 1
        return [(units // self.count + (place < units % self.count)) * unit for place in range(self.count)]

    @property
    def width(self) -> int:
        """Elements of the longest slice, which each has in a message."""
        return max(1, self.sizes[0])

    def shape_of(self, place: int) -> torch.Size:
        """Return the shape of the slice of the rank at `place`, counted from 0: rows of the tensor, or 1-D."""
        size = self.sizes[place]
        return torch.Size((size // self.shape[1:].numel(), *self.shape[1:]) if self._by_rows else (max(1, size),))

    def spread(self, tensor: Tensor) -> Tensor:
        """Return contiguous `tensor` as rows, one for each rank, [count, width]: a view, if all slices are equal."""
        flat, rows = tensor.view(-1), self.count * self.width
        if flat.numel() == rows:
            return flat.view(self.count, self.width)
        spread = flat.new_zeros(self.count, self.width)
        for row, part in zip(spread, flat.split(self.sizes), strict=True):
            row[: part.numel()] = part
        return spread

    def own(self, row: Tensor, place: int) -> Tensor:
        """Return the slice of the rank at `place` in its 1-D `row` of a message: a view."""
        shape = self.shape_of(place)
        return row[: shape.numel()].view(shape)

    def padded(self, own: Tensor) -> Tensor:
        """Return the slice `own` of a rank as its row of a message, 1-D; a view, if it is as long as that."""
        flat = own.reshape(-1)
        return flat if flat.numel() == self.width else torch.cat((flat, flat.new_zeros(self.width - flat.numel())))

    def joined(self, rows: Tensor) -> Tensor:
        """Return the tensor whose slices are in `rows`, [count, width]; a view, if all slices are equal."""
        if self.shape.numel() == rows.numel():
            return rows.reshape(self.shape)
        return torch.cat([row[:size] for row, size in zip(rows, self.sizes, strict=True)]).view(self.shape)
