"""Codes of 8 and 4 bits with a scale for each block of 64, by compiled code on a CPU and by Triton's on a GPU."""

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library, threads
from resireduce.kernels.on_gpu import in_triton

BITS = {"int8": 8, "int4": 4}


class Coded(Protocol):
    """Numbers stored as `codes` of `kind`, int8 or int4, two of int4 in a byte: each is its code times its scale.

    `scales` has one float32 number for each block of 64.
    """

    kind: str
    codes: Tensor
    scales: Tensor

    def add_to_(self, target: Tensor) -> Tensor:
        """Add the numbers to contiguous `target`; return it."""


def compiled_adds(kind: str, grad: Tensor) -> bool:
    """Return whether compiled code that reads `grad` anyway may add numbers of `kind` to it on the way."""
    return _compiled(grad, kind) is not None


def encoded(flat: Tensor, kind: str, codes: Tensor, scales: Tensor, source: torch.Generator | None) -> bool:
    """Store 1-D `flat` as `codes` of `kind`, two of int4 in a byte, and float32 `scales`; return False if that was not
    done.

    Each number is rounded up with a probability equal to its fraction, drawn as torch draws from `source`, not yet
    used.
    """
    compiled = _compiled(flat, kind)
    if compiled is None or source is None:
        return False
    drawn = ctypes.c_uint32(source.initial_seed() & 0xFFFFFFFF)
    (values,) = addresses(flat)
    compiled.resireduce_encode(values, *_sizes(flat, kind), drawn, *addresses(codes, scales))
    return True


def decoded_into(flat: Tensor, kind: str, codes: Tensor, scales: Tensor) -> bool:
    """Add what `codes` of `kind` and float32 `scales` encode to 1-D `flat`; return False if that was not done."""
    if encodes_in_one_pass(flat, kind, codes, scales):
        from resireduce.kernels.gpu.blocks import decode_add_

        decode_add_(flat, codes, scales, BITS[kind])
        return True
    compiled = _compiled(flat, kind)
    if compiled is None:
        return False
    (values,) = addresses(flat)
    compiled.resireduce_decode_add(values, *_sizes(flat, kind), *addresses(codes, scales))
    return True


def encodes_in_one_pass(values: Tensor, kind: str, codes: Tensor, scales: Tensor) -> bool:
    """Return whether kernels on a GPU encode `values` as `codes` of `kind` and `scales`, and decode them."""
    return kind in BITS and in_triton(values, codes, scales)


def encode_piece(values: Tensor, kind: str, codes: Tensor, scales: Tensor, source: torch.Generator | None) -> None:
    """Store 1-D `values` as `codes` of `kind` and float32 `scales`, in one pass, where `encodes_in_one_pass` is True.

    Each number is rounded up with a probability equal to its fraction, drawn from `source` at its current position.
    """
    from resireduce.kernels.gpu.blocks import encode

    drawn = torch.rand(values.shape, dtype=torch.float32, device=values.device, generator=source)
    encode(values, drawn, codes, scales, BITS[kind])


def _compiled(flat: Tensor, kind: str) -> ctypes.CDLL | None:
    fits = kind in BITS and flat.dtype == torch.float32 and flat.device.type == "cpu" and flat.is_contiguous()
    return library("codes") if fits else None


def _sizes(flat: Tensor, kind: str) -> tuple[ctypes.c_int64, ctypes.c_int, int]:
    return ctypes.c_int64(flat.numel()), ctypes.c_int(BITS[kind]), threads(flat.numel())
