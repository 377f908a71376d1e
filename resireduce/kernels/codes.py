"""Codes of few bits: encoding, decoding, and packing into bytes."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.kernels.native import library, suits, threads
from resireduce.kernels.on_gpu import in_triton

# --- Bits packed eight a byte, and whole numbers of a few bits as planes of them: bit b of all numbers lies together
# ---


BYTE = 8
GATHER = 0x0102040810204080
"""Times eight bytes of 0 or 1, read as one number: byte 7 of the product has one bit of each, the first the lowest."""


def pack_bits(bits: Tensor) -> Tensor:
    """Return `bits`, [..., n] of bool or 0 and 1, as bytes, [..., ceil(n / 8)]: element 8 i + j is bit j of byte i.

    Zeros fill the last byte up.
    """
    octets = pad(bits.to(torch.uint8), (0, -bits.shape[-1] % BYTE)).view(torch.int64)
    return octets.mul_(GATHER).view(torch.uint8)[..., BYTE - 1 :: BYTE].contiguous()


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of each row of bytes `packed`, [..., m], as 0 and 1 in uint8, [..., count]."""
    places = torch.arange(BYTE, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> places) & 1).flatten(-2)[..., :count]


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """Return the lower `width` bits of 1-D whole numbers `codes` as `width` planes of bytes, [width, ceil(n / 8)].

    Planes of pieces that begin with a multiple of eight elements lie side by side in those of the whole: `octets`.
    """
    return pack_bits((codes >> _places(width, codes)).bitwise_and_(1))


def unpack_codes(planes: Tensor, count: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the first `count` whole numbers of `planes`, 1-D, in an integer `dtype` that holds as many bits."""
    bits = unpack_bits(planes, count).to(dtype)
    return (bits << _places(len(planes), bits)).sum(0, dtype=dtype)


def octets(piece: slice) -> slice:
    """Return the bytes that hold the bits of a piece of elements, which begins with a byte."""
    return slice(piece.start // BYTE, -(-piece.stop // BYTE))


def _places(width: int, like: Tensor) -> Tensor:
    """Return 0, 1, ..., width - 1 in a column."""
    return torch.arange(width, dtype=like.dtype, device=like.device)[:, None]


# --- Codes of 8 and 4 bits with a scale for each block of 64, by compiled code on a CPU and by Triton's on a GPU ---


BITS = {"int8": 8, "int4": 4}


def encoded(flat: Tensor, kind: str, codes: Tensor, scales: Tensor, source: torch.Generator | None) -> bool:
    """Store 1-D `flat` as `codes` of `kind`, two of int4 in a byte, and float32 `scales`; return False if that was not
    done.

    Each number is rounded up with a probability equal to its fraction, drawn as torch draws from `source`, not yet
    used.
    """
    compiled = library() if kind in BITS and source is not None and suits(flat) else None
    if compiled is None or source is None:
        return False
    sizes, drawn = (flat.numel(), BITS[kind], threads(flat.numel())), source.initial_seed() & 0xFFFFFFFF
    compiled.resireduce_encode(flat.data_ptr(), *sizes, drawn, codes.data_ptr(), scales.data_ptr())
    return True


def decoded_into(flat: Tensor, kind: str, codes: Tensor, scales: Tensor) -> bool:
    """Add what `codes` of `kind` and float32 `scales` encode to 1-D `flat`; return False if that was not done."""
    if encodes_in_one_pass(flat, kind, codes, scales):
        from resireduce.kernels.gpu.blocks import decode_add_

        decode_add_(flat, codes, scales, BITS[kind])
        return True
    compiled = library() if kind in BITS and suits(flat) else None
    if compiled is None:
        return False
    sizes = flat.numel(), BITS[kind], threads(flat.numel())
    compiled.resireduce_decode_add(flat.data_ptr(), *sizes, codes.data_ptr(), scales.data_ptr())
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
