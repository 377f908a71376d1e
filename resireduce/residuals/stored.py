"""Stored tensors: the precision in which a residual lies in memory."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.blocks import pieces, spread
from resireduce.kernels.codes import compiled_adds, decoded_into, encode_piece, encoded, encodes_in_one_pass

BLOCK = 64
"""Elements that share a scale: a float32 scale costs 0.5 bits per element."""


class Stored(ABC):
    """One tensor that is written once and read once per step. It begins as zeros."""

    @abstractmethod
    def add_to_(self, target: Tensor) -> Tensor:
        """Add what is stored to contiguous `target`, in its precision; return `target`."""

    @abstractmethod
    def read(self, dtype: torch.dtype) -> Tensor:
        """Return what is stored as a tensor of `dtype`, which must not be changed: it may be the storage itself."""

    @abstractmethod
    def release(self) -> None:
        """Free memory that is not needed until the next `set_`, since what is stored has been used."""

    @abstractmethod
    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Store `value`, whose memory may be kept; `source` is for random rounding (None on the meta device)."""

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return where a value of `dtype` may be formed, of what is stored and has been used, and of others.

        It is given to `set_` then, which leaves it there. None: `set_` copies what it is given, wherever that lies.
        """
        return None

    @property
    def cuts(self) -> bool:
        """Whether elements can be read and written in parts, by `add_part_to_` and `set_part`."""
        return False

    def add_part_to_(self, target: Tensor, start: int) -> Tensor:
        """Add the stored elements from number `start` on to contiguous `target`, as many as it has; return `target`.

        The result is that of the whole if `start` begins a block. NotImplementedError unless this `cuts`.
        """
        raise NotImplementedError(f"{type(self).__name__} is read as a whole")

    def set_part(self, value: Tensor, start: int, source: torch.Generator | None) -> None:
        """Store contiguous `value` from element `start` on, as `set_` would store it there.

        Calls for all elements in order, with one `source`, equal one call of `set_`. NotImplementedError unless this
        `cuts`.
        """
        raise NotImplementedError(f"{type(self).__name__} is written as a whole")

    def prefetch(self) -> None:
        """Start copying what is stored to where it is used; do nothing if it is already there."""
        return

    @abstractmethod
    def over(self, tensors: Mapping[str, Tensor]) -> "Stored":
        """Return an object of the same kind and shape that holds `tensors`, named as in `tensors()`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors held, by the suffixes of the names that a residual gives them."""


class Plain(Stored):
    """A tensor of `shape` on `device` in a floating-point `dtype`, rounded to nearest."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the values to `target` in one operation; return `target`."""
        return target.add_(self.values)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the values as `dtype`: the stored tensor itself if it has that dtype."""
        return self.values.to(dtype)

    def release(self) -> None:
        """Free all values."""
        self.values = self.values.new_empty(0)

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return the memory of the values, if they are of `dtype`."""
        return self.values if self.values.dtype == dtype else None

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Keep `value` itself if it has the storage dtype, otherwise a copy rounded to it."""
        if value.dtype == self.values.dtype or self.values.shape != value.shape:
            self.values = value.to(self.values.dtype)
        else:
            self.values.copy_(value)

    @property
    def cuts(self) -> bool:
        """Return True: each element is rounded by itself."""
        return True

    def add_part_to_(self, target: Tensor, start: int) -> Tensor:
        """Add the values from element `start` on to `target`; return it."""
        return target.add_(self.values.view(-1)[start : start + target.numel()].view(target.shape))

    def set_part(self, value: Tensor, start: int, source: torch.Generator | None) -> None:
        """Store `value`, rounded, from element `start` on."""
        self.values.view(-1)[start : start + value.numel()].copy_(value.view(-1))

    def over(self, tensors: Mapping[str, Tensor]) -> "Plain":
        """Return a tensor of the same precision that holds the values in `tensors`."""
        other = copy(self)
        other.values = tensors[""]
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the values, with an empty suffix as their name."""
        return {"": self.values}


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
            for piece in pieces(self.numel, BLOCK):
                held = self._part(flat[piece], piece.start)
                encode_piece(flat[piece], self.kind, held.codes, held.scales, source)
            return
        largest = self.LARGEST[self.kind]
        for piece in pieces(self.numel, BLOCK):
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

    @property
    def cuts(self) -> bool:
        """Return True: parts that begin with a block have blocks of their own."""
        return True

    def add_part_to_(self, target: Tensor, start: int) -> Tensor:
        """Add the decoded values from element `start` on, which begins a block, to `target`; return it."""
        return self._part(target, start).add_to_(target)

    def set_part(self, value: Tensor, start: int, source: torch.Generator | None) -> None:
        """Encode `value` from element `start` on, which begins a block."""
        self._part(value, start)._encode(value.view(-1), source)

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
