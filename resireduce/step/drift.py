"""Digests of parameters, which ranks compare in the first steps: they must still be the same on all."""

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from resireduce.pieces import slices

STEPS = 2
"""Number of steps in which ranks compare: before the first, a forward pass may have made parameters; before the second,
the optimizer has changed them once."""
PIECE = 1 << 18
"""Elements that are added up at once, in 16 bytes each."""
DIGESTS = 1 << 20
"""How many digests there are: few enough that the sum of the squares of all ranks' fits 64 bits."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The dtype as which an element of so many bytes is read."""
DRIFTED = (
    "parameters are no longer the same on all ranks, which the first two steps look at: averages are added to "
    "different models. A single bit counts, so it may be rounding alone, as where each rank moves them and back by "
    "add_() and sub_(): put a copy back. Or something may be random on each rank for itself, as a layer that is made "
    "in its first forward pass, or an optimizer that rounds at random: seed all ranks alike for it, or run that pass "
    "before distribute(). Or a checkpoint may have been loaded on some ranks alone: load it on all"
)


def digest(parameters: Iterable[Tensor]) -> int:
    """Return a number from 1 to 2^20, almost surely another one for other `parameters`: a hash of sums over their bits.

    Of a tensor that wraps others, these count; sparse tensors and those without storage are left out. The host waits
    for the devices once.
    """
    held = [inner for one in parameters for inner in _inner(one) if inner.numel() and _has_bits(inner)]
    if not held:
        return 1
    found = [torch.stack([*map(_sum, _pieces(one))]) for one in held]
    sums = torch.cat([one.to(found[0].device) for one in found]).tolist()
    return 1 + int.from_bytes(hashlib.sha256(str(sums).encode()).digest()[:8]) % DIGESTS


def _inner(tensor: Tensor) -> Iterator[Tensor]:
    """Yield `tensor`, or what it wraps, as a quantized weight wraps its integers and scales."""
    if not is_traceable_wrapper_subclass(tensor):
        is_pairs = tensor.is_complex() and tensor.layout == torch.strided
        yield torch.view_as_real(tensor.detach().resolve_conj()) if is_pairs else tensor.detach()
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _inner(getattr(tensor, name))


def _has_bits(tensor: Tensor) -> bool:
    plain = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized)
    return plain and tensor.element_size() in BITS


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield `tensor` in views of at most PIECE elements, of whole rows as far as these are short enough."""
    if tensor.numel() <= PIECE:
        yield tensor
    elif tensor.numel() > PIECE * len(tensor):
        for row in tensor:
            yield from _pieces(row)
    else:
        for some in slices(len(tensor), PIECE * len(tensor) // tensor.numel()):
            yield tensor[some]


def _sum(piece: Tensor) -> Tensor:
    """Return a sum over the bits of `piece`, int64, as a scalar. It takes memory of several times the piece.

    An element of bits b in place p counts b (b + p^2): plain sums are the same for elements in another order, and for
    many that are multiplied by a power of two.
    """
    bits = piece.resolve_neg().view(BITS[piece.element_size()]).long()
    if piece.element_size() == 8:
        bits = bits ^ bits >> 32  # what the highest bits say would be lost in products of 64 bits
    places = torch.arange(1, 1 + bits.numel(), device=bits.device).view(bits.shape)
    return places.square_().add_(bits).mul_(bits).sum()
