"""Stored tensors in few bits an element, in blocks that share a scale."""

from collections.abc import Iterator, Mapping
from copy import copy
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.blocks import SMALLEST, pieces, spread
from resireduce.kernels.codes import compiled_adds, decoded_into, encode_piece, encoded, encodes_in_one_pass
from resireduce.residuals.stored import Stored

BLOCK = 64
"""Elements that share a scale: a float32 scale costs 0.5 bits per element."""
SMALLEST_DRAW = 1 << 20
"""Least number of elements for which a GPU draws numbers at once, unless a sixteenth of the tensor is more."""


class Blocks(Stored):
    """Codes of `kind` (int8, int4, float8_e4m3) for a tensor of `shape` on `device`.

    Each block of 64 elements has a float32 scale, which maps its largest magnitude to the largest code.

    int8 and int4 are rounded at random, so that the expectation is the value to be stored: otherwise a residual smaller
    than half a step would never be kept. float8_e4m3 is rounded to nearest, since its steps are relative.
    """

    LARGEST: ClassVar = {"int8": 127.0, "int4": 7.0, "float8_e4m3": 448.0}

    def __init__(self, shape: tuple[int, ...], kind: str, device: torch.device):
        self.kind, self.shape, self.numel = kind, shape, torch.Size(shape).numel()
        code = {"int8": torch.int8, "int4": torch.uint8, "float8_e4m3": torch.float8_e4m3fn}[kind]
        held = -(-self.numel // 2) if kind == "int4" else self.numel
        self.codes = torch.zeros(held, dtype=code, device=device)
        self.scales = torch.zeros(-(-self.numel // BLOCK), dtype=torch.float32, device=device)

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the decoded values to `target`, a sixteenth of them at a time; return `target`."""
        flat = target.view(-1)
        if decoded_into(flat, self.kind, self.codes, self.scales):
            return target
        for piece in pieces(self.numel, BLOCK):
            values = self._read(piece).mul_(spread(self.scales, BLOCK, piece))
            flat[piece].add_(values.to(flat.dtype))
        return target

    def adds_to(self, grad: Tensor) -> bool:
        """Return whether compiled code can add what is stored to `grad` while it reads its elements."""
        return grad.shape == self.shape and compiled_adds(self.kind, grad)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the decoded values as a new tensor of `dtype`."""
        return self.add_to_(torch.zeros(self.shape, dtype=dtype, device=self.codes.device))

    def release(self) -> None:
        """Free nothing: codes are overwritten in place."""

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Encode `value`, a sixteenth of it at a time."""
        if not encoded(value.view(-1), self.kind, self.codes, self.scales, source):
            self._encode(value.view(-1), source)

    def _encode(self, flat: Tensor, source: torch.Generator | None) -> None:
        """Encode 1-D `flat`, drawing from `source` at its current position, as compiled code cannot."""
        if encodes_in_one_pass(flat, self.kind, self.codes, self.scales):
            for piece in self._drawn_at_once(flat):
                held = self._part(flat[piece], piece.start)
                encode_piece(flat[piece], self.kind, held.codes, held.scales, source)
            return
        largest = self.LARGEST[self.kind]
        for piece in self._drawn_at_once(flat):
            part = flat[piece].float()
            blocks = pad(part, (0, -part.numel() % BLOCK)).view(-1, BLOCK)
            scales = blocks.abs().amax(1)
            # A GPU multiplies by the reciprocal of a host number, which is not the same as dividing.
            scales.div_(largest if part.is_cpu or part.is_meta else torch.full_like(scales, largest))
            self.scales[piece.start // BLOCK : -(-piece.stop // BLOCK)] = scales
            scaled = part / spread(scales.clamp(min=torch.finfo(torch.float32).tiny), BLOCK, slice(0, part.numel()))
            if self.kind != "float8_e4m3":
                draw = torch.rand(scaled.shape, dtype=torch.float32, device=scaled.device, generator=source)
                scaled = scaled.add_(draw).floor_()
            self._write(piece, scaled.clamp_(-largest, largest))

    def _drawn_at_once(self, flat: Tensor) -> Iterator[slice]:
        """Return the pieces for which numbers are drawn at once: on a GPU, larger ones, as each draw is a launch."""
        return pieces(self.numel, BLOCK, SMALLEST if flat.is_cpu or flat.is_meta else SMALLEST_DRAW)

    def _read(self, piece: slice) -> Tensor:
        if self.kind != "int4":
            return self.codes[piece].float()
        packed = self.codes[piece.start // 2 : -(-piece.stop // 2)]
        pairs = torch.stack((packed & 15, packed >> 4), dim=1)
        return pairs.view(-1)[: piece.stop - piece.start].float().sub_(8)

    def _write(self, piece: slice, codes: Tensor) -> None:
        if self.kind != "int4":
            self.codes[piece] = codes.to(self.codes.dtype)
            return
        unsigned = pad(codes.add_(8).to(torch.uint8), (0, codes.numel() % 2)).view(-1, 2)
        self.codes[piece.start // 2 : -(-piece.stop // 2)] = unsigned[:, 0] | (unsigned[:, 1] << 4)

    def _part(self, like: Tensor, start: int) -> "Blocks":
        """Return the elements from `start` on, as many as `like` has, as views of the codes and scales."""
        assert start % BLOCK == 0
        stop, share = start + like.numel(), 2 if self.kind == "int4" else 1
        part = self.over(
            {
                ".codes": self.codes[start // share : -(-stop // share)],
                ".scales": self.scales[start // BLOCK : -(-stop // BLOCK)],
            }
        )
        part.shape, part.numel = tuple(like.shape), like.numel()
        return part

    def over(self, tensors: Mapping[str, Tensor]) -> "Blocks":
        """Return blocks of the same kind and shape that hold the codes and scales in `tensors`."""
        other = copy(self)
        other.codes, other.scales = tensors[".codes"], tensors[".scales"]
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the codes (two of int4 in a byte) and the scales (float32)."""
        return {".codes": self.codes, ".scales": self.scales}
