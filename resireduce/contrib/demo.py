"""DeMo's extraction of fast components: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum optimization", 2024,
arXiv 2411.19870, section 3."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.compressors.base import Selecting
from resireduce.core.messages import Payload
from resireduce.kernels.ops import infinity_norm
from resireduce.pieces import PIECES, SMALLEST, share, slices

SIDE = 64
"""Most elements of a tile's side, as in the paper."""
ROOM = 16
"""Coefficients are stored divided by the square of this, so that no sum of the largest numbers overflows."""


@dataclass(frozen=True)
class DeMo(Selecting):
    """Sends of each tile of 64 x 64 elements the k largest coefficients of its cosine transform, k = max(1,
    floor(density x elements of a tile)), with 16 bits for the place of each.

    The transform is the orthonormal DCT-II along both sides. A tensor is taken as a matrix of its first dimension by
    all others; one of fewer than two dimensions is a row. A side that is not a multiple of 64 is cut into as few equal
    parts of at most 64 as possible, and the last is filled up with zeros. A tile is not sent in a step where its
    difference from what would be sent exceeds the range of the gradient's dtype.

    Every rank computes values from coefficients itself, as sums, which may differ in the last digits between kinds of
    processors, and the parameters with them.

    The paper's algorithm is this with scheme "decayed", whose residual is its momentum, and an optimizer without
    momentum.
    """

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        """Return coefficients, in float32 (float64 for float64), and their places in the tiles, in 16 bits."""
        tiles = _Tiles(grad)
        shape = (*tiles.counts, share(self.density, tiles.height * tiles.width))
        values = torch.empty(shape, dtype=tiles.dtype, device=grad.device)
        places = torch.empty(shape, dtype=torch.int16, device=grad.device)
        bound = torch.finfo(grad.dtype).max / (1 + math.sqrt(tiles.height * tiles.width))
        near = not grad.is_meta and bool(infinity_norm(grad.view(-1)) > bound)
        for at, part in tiles.parts():
            coefficients = tiles.forward(part).flatten(2)
            chosen = coefficients.abs().topk(shape[2], 2, sorted=False).indices
            values[at] = coefficients.gather(2, chosen)
            if near:
                values[at] *= tiles.hold(part, tiles.backward(values[at], chosen))[..., None]
            places[at] = chosen
        return Payload.pack(values.view(-1), places.view(-1), like=grad)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        tiles = _Tiles(dense)
        values, places = (part.view(*tiles.counts, -1) for part in payload.parts())
        for at, part in tiles.parts():
            found = tiles.backward(values[at], places[at].long()).transpose(1, 2).flatten(2).flatten(0, 1)
            part.add_(found[: part.shape[0], : part.shape[1]].to(dense.dtype), alpha=scale)
        return dense


class _Tiles:
    """Contiguous `dense` as a matrix in tiles of the same size, of at most SIDE x SIDE elements."""

    def __init__(self, dense: Tensor):
        self._matrix = dense.view(dense.shape[0], -1) if dense.dim() > 1 else dense.view(1, -1)
        rows, columns = self._matrix.shape
        self.counts = -(-rows // SIDE), -(-columns // SIDE)
        self.dtype = torch.promote_types(dense.dtype, torch.float32)
        self.height, self.width = -(-rows // self.counts[0]), -(-columns // self.counts[1])
        self._left, self._right = (_cosines(size, self.dtype, dense.device) for size in (self.height, self.width))

    def parts(self) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
        """Yield some tiles at a time, at most about a sixteenth: their numbers, and a view of their elements."""
        tiles = max(1, max(SMALLEST, self._matrix.numel() // PIECES) // (self.height * self.width))
        wide = min(tiles, self.counts[1])
        for rows in slices(self.counts[0], max(1, tiles // wide)):
            for columns in slices(self.counts[1], wide):
                down = slice(rows.start * self.height, rows.stop * self.height)
                across = slice(columns.start * self.width, columns.stop * self.width)
                yield (rows, columns), self._matrix[down, across]

    def forward(self, part: Tensor) -> Tensor:
        """Return coefficients / ROOM^2 of the tiles in `part`: [rows of tiles, columns of tiles, height, width]."""
        return (self._left / ROOM) @ self._cut(part) @ (self._right.T / ROOM)

    def backward(self, values: Tensor, places: Tensor) -> Tensor:
        """Return tiles from coefficients / ROOM^2 at int64 `places` of their flat form; all others are zero."""
        coefficients = values.new_zeros(*values.shape[:2], self.height * self.width).scatter_(2, places, values)
        return (self._left.T * ROOM) @ coefficients.unflatten(2, (self.height, self.width)) @ (self._right * ROOM)

    def hold(self, part: Tensor, sent: Tensor) -> Tensor:
        """Return for each tile in `part` whether what is `sent` of it, and what is left, are both finite: bool."""
        rounded = sent.to(part.dtype)
        finite = rounded.isfinite() & (self._cut(part).to(part.dtype) - rounded).isfinite()
        return finite.flatten(2).all(2)

    def _cut(self, part: Tensor) -> Tensor:
        """Return tiles of `part`, filled up with zeros, in the dtype of the coefficients."""
        missing = -part.shape[1] % self.width, -part.shape[0] % self.height
        whole = pad(part.to(self.dtype), (0, missing[0], 0, missing[1]))
        return whole.unflatten(1, (-1, self.width)).unflatten(0, (-1, self.height)).transpose(1, 2)


def _cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix of the orthonormal DCT-II, [frequency, place]."""
    frequency, place = (torch.arange(size, dtype=torch.float64, device=device) for _ in range(2))
    angles = torch.outer(frequency, place + 0.5).mul_(math.pi / size)
    matrix = angles.cos_().mul_(math.sqrt(2 / size))
    matrix[0] /= math.sqrt(2)
    return matrix.to(dtype)
