"""Bits packed eight a byte, and whole numbers of a few bits as planes of them: bit b of all numbers lies together."""

import torch
from torch import Tensor
from torch.nn.functional import pad

BYTE = 8


def pack_bits(bits: Tensor) -> Tensor:
    """Return 1-D `bits`, bool or 0 and 1, as ceil(n / 8) bytes: element 8 i + j is bit j of byte i; zeros fill up."""
    octets = pad(bits.to(torch.uint8), (0, -bits.numel() % BYTE)).view(-1, BYTE)
    packed = octets[:, 0].clone()
    for place in range(1, BYTE):
        packed |= octets[:, place] << place
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of 1-D `packed` bytes, each as a 0 or a 1 of uint8, 1-D."""
    places = torch.arange(BYTE, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 1).view(-1)[:count]


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """Return the lower `width` bits of 1-D whole numbers `codes` as `width` planes of bytes, [width, ceil(n / 8)].

    Planes of pieces that begin with a multiple of eight elements lie side by side in those of the whole: `octets`.
    """
    planes = torch.empty(width, -(-codes.numel() // BYTE), dtype=torch.uint8, device=codes.device)
    for place, plane in enumerate(planes):
        plane.copy_(pack_bits((codes >> place) & 1))
    return planes


def unpack_codes(planes: Tensor, count: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the first `count` whole numbers of `planes`, 1-D, in an integer `dtype` that holds as many bits."""
    codes = torch.zeros(count, dtype=dtype, device=planes.device)
    for place, plane in enumerate(planes):
        codes |= unpack_bits(plane, count).to(dtype) << place
    return codes


def octets(piece: slice) -> slice:
    """Return the bytes that hold the bits of a piece of elements, which begins with a byte."""
    return slice(piece.start // BYTE, -(-piece.stop // BYTE))
