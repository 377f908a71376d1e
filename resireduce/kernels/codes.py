"""Codes of 8 and 4 bits with a scale for each block of 64, by compiled code where there is some."""

import ctypes

import torch
from torch import Tensor

from resireduce.kernels.native import addresses, library, threads

BITS = {"int8": 8, "int4": 4}


def encoded(flat: Tensor, kind: str, codes: Tensor, scales: Tensor, source: torch.Generator | None) -> bool:
    """Store 1-D `flat` as `codes` of `kind`, two of int4 in a byte, and float32 `scales`; False if nothing was done.

    Each is rounded up with the probability of what it is above, drawn as torch does from `source`, not used before.
    """
    compiled = _compiled(flat, kind)
    if compiled is None or source is None:
        return False
    drawn = ctypes.c_uint32(source.initial_seed() & 0xFFFFFFFF)
    (values,) = addresses(flat)
    compiled.resireduce_encode(values, *_sizes(flat, kind), drawn, *addresses(codes, scales))
    return True


def decoded_into(flat: Tensor, kind: str, codes: Tensor, scales: Tensor) -> bool:
    """Add what `codes` of `kind` and float32 `scales` stand for to 1-D `flat`; False if nothing was done."""
    compiled = _compiled(flat, kind)
    if compiled is None:
        return False
    (values,) = addresses(flat)
    compiled.resireduce_decode_add(values, *_sizes(flat, kind), *addresses(codes, scales))
    return True


def _compiled(flat: Tensor, kind: str) -> ctypes.CDLL | None:
    fits = kind in BITS and flat.dtype == torch.float32 and flat.device.type == "cpu" and flat.is_contiguous()
    return library("codes") if fits else None


def _sizes(flat: Tensor, kind: str) -> tuple[ctypes.c_int64, ctypes.c_int, ctypes.c_int]:
    return ctypes.c_int64(flat.numel()), ctypes.c_int(BITS[kind]), threads(flat.numel())
