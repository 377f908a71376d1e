"""Stored tensors: a residual in memory, in its precision, on its device or in the host's memory."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.kernels.ops import in_triton, library, suits, threads
from resireduce.pieces import pieces, spread, worth_a_piece


class Plain:
    """A tensor of `shape` on `device` in a floating-point `dtype`, rounded to nearest.

    What is beyond the range of float16 becomes its largest number: infinity would be sent, and stay. has_own_dtype:
    whether gradients have this `dtype`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, has_own_dtype: bool = False):
        self.values, self.has_own_dtype = torch.zeros(shape, dtype=dtype, device=device), has_own_dtype

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the values to contiguous `target`, in its precision; return `target`."""
        return target.add_(self.values)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the values as `dtype`, not to be changed: the stored tensor itself if it has that dtype."""
        return self.values.to(dtype)

    def release(self) -> None:
        """Free memory that is not needed until the next `set_`, since the values have been used."""
        self.values = self.values.new_empty(0)

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return memory in which the next value of `dtype` may be formed, once the values have been used.

        It is then given to `set_`, which leaves it there. None: `set_` copies what it is given.
        """
        return self.values if self.values.dtype == dtype else None

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Keep `value` itself if it has the storage dtype, otherwise a copy rounded to it; nothing needs `source`."""
        if value is self.values:  # it was formed there
            return
        if value.dtype == self.values.dtype or self.values.shape != value.shape:
            self.values = value.to(self.values.dtype)
        else:
            self.values.copy_(value)
        if self.values.dtype == torch.float16 != value.dtype:
            largest = torch.finfo(torch.float16).max
            self.values.clamp_(-largest, largest)

    def over(self, tensors: Mapping[str, Tensor]) -> "Plain":
        """Return a tensor of the same precision that holds `tensors`, named as in `tensors()`."""
        other = copy(self)
        other.values = tensors[""]
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the values, by the suffix of the names that a residual gives them."""
        return {"": self.values}


# --- Stored tensors in few bits an element, in blocks that share a scale ---


BLOCK = 64
"""Elements that share a scale: a float32 scale costs 0.5 bits per element."""


class Blocks:
    """Codes of `kind` (int8, int4, float8_e4m3) for a tensor of `shape` on `device`.

    Each block of 64 elements has a float32 scale, which maps its largest magnitude to the largest code.

    int8 and int4 are rounded at random, so that the expectation is the value to be stored: otherwise a residual smaller
    than half a step would never be kept. float8_e4m3 is rounded to nearest, since its steps are relative.
    """

    LARGEST: ClassVar = {"int8": 127.0, "int4": 7.0, "float8_e4m3": 448.0}
    BITS: ClassVar = {"int8": 8, "int4": 4}
    """Bits of an element, for the kinds that compiled code encodes."""

    def __init__(self, shape: tuple[int, ...], kind: str, device: torch.device):
        self.kind, self.shape, self.numel = kind, shape, torch.Size(shape).numel()
        code = {"int8": torch.int8, "int4": torch.uint8, "float8_e4m3": torch.float8_e4m3fn}[kind]
        held = -(-self.numel // 2) if kind == "int4" else self.numel
        self.codes = torch.zeros(held, dtype=code, device=device)
        self.scales = torch.zeros(-(-self.numel // BLOCK), dtype=torch.float32, device=device)

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the decoded values to `target`; plain torch does so a sixteenth at a time. Return `target`."""
        flat, bits = target.view(-1), self.BITS.get(self.kind, 0)
        compiled = library() if bits and suits(flat) else None
        if bits and in_triton(flat, self.codes, self.scales):
            from resireduce.kernels.gpu import one_pass

            one_pass.decode_add_(flat, self.codes, self.scales, bits)
        elif compiled is not None:
            sizes = flat.numel(), bits, threads(flat.numel())
            compiled.resireduce_decode_add(flat.data_ptr(), *sizes, self.codes.data_ptr(), self.scales.data_ptr())
        else:
            for piece in pieces(self.numel, BLOCK):
                values = self._read(piece).mul_(spread(self.scales, BLOCK, piece))
                flat[piece].add_(values.to(flat.dtype))
        return target

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the decoded values as a new tensor of `dtype`."""
        return self.add_to_(torch.zeros(self.shape, dtype=dtype, device=self.codes.device))

    def release(self) -> None:
        """Free nothing: codes are overwritten in place."""

    def room(self, dtype: torch.dtype) -> None:
        """Return None, whatever the `dtype`: what is given to `set_` is encoded."""

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Encode `value`, rounded at random by `source`, which has not been used; plain torch does so a sixteenth at a
        time. Compiled code draws what torch draws from `source`."""
        flat, bits = value.view(-1), self.BITS.get(self.kind, 0)
        compiled = library() if bits and source is not None and suits(flat) else None
        if compiled is not None and source is not None:
            sizes, seed = (flat.numel(), bits, threads(flat.numel())), source.initial_seed() & 0xFFFFFFFF
            compiled.resireduce_encode(flat.data_ptr(), *sizes, seed, self.codes.data_ptr(), self.scales.data_ptr())
            return
        is_host, by_kernel = flat.is_cpu or flat.is_meta, bits and in_triton(flat, self.codes, self.scales)
        largest = self.LARGEST[self.kind]
        for piece in pieces(self.numel, BLOCK, worth_a_piece(flat)):
            (codes, held_scales), size = self._held(piece), piece.stop - piece.start
            if by_kernel:
                from resireduce.kernels.gpu import one_pass

                draw = torch.rand(size, dtype=torch.float32, device=flat.device, generator=source)
                one_pass.encode(flat[piece], draw, codes, held_scales, bits)
                continue
            part = flat[piece].float()
            blocks = pad(part, (0, -size % BLOCK)).view(-1, BLOCK)
            scales = blocks.abs().amax(1)
            # A GPU multiplies by the reciprocal of a host number, which is not the same as dividing.
            scales.div_(largest if is_host else torch.full_like(scales, largest))
            held_scales.copy_(scales)
            scaled = part / spread(scales.clamp(min=torch.finfo(torch.float32).tiny), BLOCK, slice(0, size))
            if bits:
                draw = torch.rand(size, dtype=torch.float32, device=flat.device, generator=source)
                scaled = scaled.add_(draw).floor_()
            scaled.clamp_(-largest, largest)
            if bits == 4:
                unsigned = pad(scaled.add_(8).to(torch.uint8), (0, size % 2)).view(-1, 2)
                scaled = unsigned[:, 0] | (unsigned[:, 1] << 4)
            codes.copy_(scaled)

    def _read(self, piece: slice) -> Tensor:
        codes, _ = self._held(piece)
        if self.kind != "int4":
            return codes.float()
        pairs = torch.stack((codes & 15, codes >> 4), dim=1)
        return pairs.view(-1)[: piece.stop - piece.start].float().sub_(8)

    def _held(self, piece: slice) -> tuple[Tensor, Tensor]:
        """Return the codes and scales of the elements in `piece`, which begins a block."""
        in_one = 2 if self.kind == "int4" else 1
        codes = self.codes[piece.start // in_one : -(-piece.stop // in_one)]
        return codes, self.scales[piece.start // BLOCK : -(-piece.stop // BLOCK)]

    def over(self, tensors: Mapping[str, Tensor]) -> "Blocks":
        """Return blocks of the same kind and shape that hold the codes and scales in `tensors`."""
        other = copy(self)
        other.codes, other.scales = tensors[".codes"], tensors[".scales"]
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the codes (two of int4 in a byte) and the scales (float32)."""
        return {".codes": self.codes, ".scales": self.scales}


# --- Residuals in the host's memory: a GPU holds one of them only while it is being used ---


class Hosted:
    """What `near` would hold on its device, held in the host's memory instead, pinned if the device is a GPU.

    Copies in both directions run on a stream of their own, in parallel to the backward pass: to the device by
    `prefetch`, before the gradient has come; to the host by `set_`, while the backward pass goes on.
    """

    def __init__(self, near: "Plain | Blocks"):
        tensors = near.tensors()
        self._device = next(iter(tensors.values())).device
        self._far = near.over({name: _on_host(tensor) for name, tensor in tensors.items()})
        self._near: Plain | Blocks | None = None

    def prefetch(self) -> None:
        """Start copying to the device, if that has not been done yet."""
        if self._near is None:
            with _beside(self._device):
                self._near = self._empty()
                for name, tensor in self._far.tensors().items():
                    self._near.tensors()[name].copy_(tensor, non_blocking=True)

    def add_to_(self, target: Tensor) -> Tensor:
        """Add what is stored to `target`, once it has come from the host; return `target`."""
        return self._come().add_to_(target)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return what is stored, on the device, as a tensor of `dtype` that must not be changed."""
        return self._come().read(dtype)

    def release(self) -> None:
        """Free the copy on the device."""
        self._near = None

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return the memory of the copy on the device, if it can hold a value of `dtype`; `set_` must follow."""
        if self._near is None:
            self._near = self._empty()
        return self._near.room(dtype)

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Encode `value` on the device, by `source`, and start copying the result to the host."""
        near = self._near or self._empty()
        near.set_(value, source)
        self._near = None
        with _beside(self._device, after=True):
            for name, tensor in near.tensors().items():
                self._far.tensors()[name].copy_(tensor, non_blocking=True)
                if tensor.is_cuda:  # its memory is given to no other tensor before the copy is over
                    tensor.record_stream(_stream(self._device))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors on the host, after all copies to and from them have finished."""
        if self._device.type == "cuda":
            _stream(self._device).synchronize()
        self._near = None
        return self._far.tensors()

    def _empty(self) -> "Plain | Blocks":
        """Return what is like the storage on the host, on the device, without values."""
        empty = {name: torch.empty_like(one, device=self._device) for name, one in self._far.tensors().items()}
        return self._far.over(empty)

    def _come(self) -> "Plain | Blocks":
        """Return the copy on the device, which work launched from now on may use."""
        self.prefetch()
        assert self._near is not None
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(_stream(self._device))
            for tensor in self._near.tensors().values():
                tensor.record_stream(torch.cuda.current_stream(self._device))
        return self._near


def _on_host(tensor: Tensor) -> Tensor:
    """Return zeros like `tensor` in the host's memory, pinned if it is on a GPU; without storage if it has none."""
    where = "meta" if tensor.is_meta else "cpu"
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=where, pin_memory=tensor.is_cuda)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _beside(device: torch.device, after: bool = False) -> AbstractContextManager[object]:
    """Return a context for copies on their own stream; with `after`, they wait for everything launched before."""
    if device.type != "cuda":
        return nullcontext()
    if after:
        _stream(device).wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(_stream(device))


Stored = Plain | Blocks | Hosted
"""One tensor that is written once and read once per step; it begins as zeros. All three have the same methods."""
