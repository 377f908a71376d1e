"""Bits packed eight a byte, and whole numbers of a few bits as planes of them."""

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    places = torch.arange(width, dtype=codes.dtype, device=codes.device)
    return pack_bits((codes >> places[:, None]).bitwise_and_(1))


def unpack_codes(planes: Tensor, count: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the first `count` whole numbers of `planes`, 1-D, in an integer `dtype` that holds as many bits."""
    places = torch.arange(len(planes), dtype=dtype, device=planes.device)
    return (unpack_bits(planes, count).to(dtype) << places[:, None]).sum(0, dtype=dtype)


def octets(piece: slice) -> slice:
    """Return the bytes that hold the bits of a piece of elements, which begins with a byte."""
    return slice(piece.start // BYTE, -(-piece.stop // BYTE))
