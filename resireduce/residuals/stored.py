"""Stored tensors: a residual in memory, in its precision, on its device or in the host's memory."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.kernels.ops import in_triton, library_for, threads
from resireduce.pieces import pieces, spread, worth_a_piece


class Plain:
    """A tensor of `shape` on `device` in a floating-point `dtype`, rounded to nearest.

    What is beyond the range of float16 becomes its largest number: infinity would be sent, and stay.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def addends(self: "Stored", grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the sum with contiguous `grad`, in its memory, and None: nothing is left to be added."""
        return self.add_to_(grad), None

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the values to contiguous `target`, in its precision; return `target`."""
        return target.add_(self.values)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the values as `dtype`, not to be changed: the stored tensor itself if it has that dtype."""
        return self.values.to(dtype)

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return the memory of the values, which have been used, if the next value of `dtype` can be formed in it.

        That is then given to `set_`, which leaves it there. None: it is freed until `set_`.
        """
        if self.values.dtype == dtype:
            return self.values
        self.values = self.values.new_empty(0)
        return None

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Copy `value`, rounded to the storage dtype; nothing needs `source`."""
        if self.values.shape != value.shape:  # its memory was freed
            self.values = self.values.new_empty(value.shape)
        self.values.copy_(value)
        if self.values.dtype == torch.float16 != value.dtype:
            largest = torch.finfo(torch.float16).max
            self.values.clamp_(-largest, largest)

    def tensors(self) -> dict[str, Tensor]:
        """Return the values, by the suffix of the names that a residual gives them."""
        return {"": self.values}


BLOCK = 64
"""Elements that share a scale: a float32 scale costs 0.5 bits per element."""


class Blocks:
    """Codes of `kind` (int8, int4, float8_e4m3) for a tensor of `shape` on `device`.

    Each block of 64 elements has a float32 scale, which maps its largest magnitude to the largest code.

    int8 and int4 are rounded at random, so that the expectation is the value to be stored: otherwise a residual smaller
    than half a step would never be kept. float8_e4m3 is rounded to nearest, since its steps are relative.
    """

    LARGEST: ClassVar = {"int8": 127.0, "int4": 7.0, "float8_e4m3": 448.0}

    def __init__(self, shape: tuple[int, ...], kind: str, device: torch.device):
        self.shape, self.numel, self.largest = shape, torch.Size(shape).numel(), self.LARGEST[kind]
        self.bits = {"int8": 8, "int4": 4}.get(kind, 0)
        """Bits of an element, for the kinds that compiled code encodes."""
        code = {"int8": torch.int8, "int4": torch.uint8, "float8_e4m3": torch.float8_e4m3fn}[kind]
        self.codes = torch.zeros(self._bytes(self.numel), dtype=code, device=device)
        self.scales = torch.zeros(-(-self.numel // BLOCK), dtype=torch.float32, device=device)

    addends = Plain.addends

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the decoded values to `target`; plain torch does so a sixteenth at a time. Return `target`."""
        flat, bits = target.view(-1), self.bits
        if bits and in_triton(flat, self.codes, self.scales):
            from resireduce.kernels.gpu import one_pass

            one_pass.decode_add_(flat, self.codes, self.scales, bits)
        elif bits and (compiled := library_for(flat)) is not None:
            sizes = flat.numel(), bits, threads(flat.numel())
            compiled.resireduce_decode_add(flat.data_ptr(), *sizes, self.codes.data_ptr(), self.scales.data_ptr())
        else:
            for piece in pieces(self.numel, BLOCK):
                codes, _ = self._held(piece)
                if bits == 4:
                    codes = torch.stack((codes & 15, codes >> 4), dim=1).view(-1)[: piece.stop - piece.start]
                values = codes.float().sub_(8) if bits == 4 else codes.float()
                flat[piece].add_(values.mul_(spread(self.scales, BLOCK, piece)).to(flat.dtype))
        return target

    def read(self, dtype: torch.dtype) -> Tensor:
        return self.add_to_(torch.zeros(self.shape, dtype=dtype, device=self.codes.device))

    def room(self, dtype: torch.dtype) -> None:
        """Return None, whatever the `dtype`: what is given to `set_` is encoded."""

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Encode `value`, rounded at random by `source`, which has not been used; plain torch does so a sixteenth at a
        time. Compiled code draws what torch draws from `source`."""
        flat, bits = value.view(-1), self.bits
        if bits and source is not None and (compiled := library_for(flat)) is not None:
            sizes, seed = (flat.numel(), bits, threads(flat.numel())), source.initial_seed() & 0xFFFFFFFF
            compiled.resireduce_encode(flat.data_ptr(), *sizes, seed, self.codes.data_ptr(), self.scales.data_ptr())
            return
        by_kernel = bits and in_triton(flat, self.codes, self.scales)
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
            held_scales.copy_(scales.div_(scales.new_full((), self.largest)))
            scaled = part / spread(scales.clamp(min=torch.finfo(torch.float32).tiny), BLOCK, slice(0, size))
            if bits:
                draw = torch.rand(size, dtype=torch.float32, device=flat.device, generator=source)
                scaled = scaled.add_(draw).floor_()
            scaled.clamp_(-self.largest, self.largest)
            if bits == 4:
                unsigned = pad(scaled.add_(8).to(torch.uint8), (0, size % 2)).view(-1, 2)
                scaled = unsigned[:, 0] | (unsigned[:, 1] << 4)
            codes.copy_(scaled)

    def _bytes(self, count: int) -> int:
        """Return how many bytes hold the codes of `count` elements."""
        return -(-count // 2) if self.bits == 4 else count

    def _held(self, piece: slice) -> tuple[Tensor, Tensor]:
        """Return the codes and scales of the elements in `piece`, which begins a block."""
        codes = self.codes[self._bytes(piece.start) : self._bytes(piece.stop)]
        return codes, self.scales[piece.start // BLOCK : -(-piece.stop // BLOCK)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the codes (two of int4 in a byte) and the scales (float32)."""
        return {".codes": self.codes, ".scales": self.scales}


class Hosted:
    """What `near` would hold on its device, held in the host's memory instead, pinned if the device is a GPU.

    Copies in both directions run on a stream of their own, in parallel to the backward pass: to the device by
    `prefetch`, before the gradient has come; to the host by `set_`, while the backward pass goes on.
    """

    def __init__(self, near: "Plain | Blocks"):
        self._device = next(iter(near.tensors().values())).device
        host, pinned = "meta" if self._device.type == "meta" else "cpu", self._device.type == "cuda"
        self._far = _with_tensors(
            near, lambda one: torch.zeros(one.shape, dtype=one.dtype, device=host, pin_memory=pinned)
        )
        self._near: Plain | Blocks | None = None

    def prefetch(self) -> None:
        """Start copying to the device, if that has not been done yet."""
        if self._near is None:
            with _beside(self._device):
                self._near = _with_tensors(self._far, lambda far: far.to(self._device, non_blocking=True, copy=True))

    addends = Plain.addends

    def add_to_(self, target: Tensor) -> Tensor:
        return self._come().add_to_(target)

    def read(self, dtype: torch.dtype) -> Tensor:
        return self._come().read(dtype)

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return the memory of the copy on the device, if it can hold a value of `dtype`; `set_` must follow."""
        near = self._near or self._empty()
        room = near.room(dtype)
        self._near = None if room is None else near
        return room

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Encode `value` on the device, by `source`, and start copying the result to the host."""
        near, self._near = self._near or self._empty(), None
        near.set_(value, source)
        with _beside(self._device, after=True):
            for one, far in zip(near.tensors().values(), self._far.tensors().values(), strict=True):
                far.copy_(one, non_blocking=True)
                if one.is_cuda:  # its memory is given to no other tensor before the copy is over
                    one.record_stream(_stream(self._device))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors on the host, after all copies to and from them have finished."""
        if self._device.type == "cuda":
            _stream(self._device).synchronize()
        self._near = None
        return self._far.tensors()

    def _empty(self) -> "Plain | Blocks":
        """Return what is like the storage on the host, on the device, without values."""
        return _with_tensors(self._far, lambda far: torch.empty_like(far, device=self._device))

    def _come(self) -> "Plain | Blocks":
        """Return the copy on the device, which work launched from now on may use."""
        self.prefetch()
        assert self._near is not None
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(_stream(self._device))
            for tensor in self._near.tensors().values():
                tensor.record_stream(torch.cuda.current_stream(self._device))
        return self._near


def _with_tensors(stored: "Plain | Blocks", make: Callable[[Tensor], Tensor]) -> "Plain | Blocks":
    """Return storage like `stored`, with what `make` returns for each of its tensors."""
    other = copy(stored)
    vars(other).update({name: make(one) for name, one in vars(stored).items() if isinstance(one, Tensor)})
    return other


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
