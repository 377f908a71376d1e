"""Compares each kernel with the plain form in torch, there or on a CPU, for values of all kinds, many of them equal."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from resireduce.compressors.quantized import Block4, Block8
from resireduce.compressors.topk import TopK
from resireduce.kernels.gpu.blocks import add_blocks_, compress_blocks_
from resireduce.kernels.gpu.bucket import add_topk_, blank_spoilt_, compress_topk_, fold_, select, sum_chunks
from resireduce.kernels.gpu.one_pass import BLOCK, cross_, decode_add_, encode
from resireduce.kernels.ops import by_keys
from resireduce.residuals.stored import Blocks

NUMEL = 9 * 8192 + 77
"""Elements of a check: more than one program of any kernel processes, and not a multiple of any tile."""
Pairs = Iterator[tuple[Tensor, Tensor]]
"""What a kernel makes, each with what plain torch makes."""


def differing(device: torch.device, dtype: torch.dtype, numel: int = NUMEL) -> list[str]:
    """Return the names of the kernels that have other bits than plain torch, for `numel` values of `dtype` on `device`.

    Unless `numel` is a multiple of 16, a smaller one is checked too, since Triton compiles other code for it. The host
    waits for the device. Raises what Triton raises if it cannot compile them.
    """
    flat = sample(device, dtype, numel)
    parts = [flat[:size] for size in {numel, numel // 16 * 16}]
    return [name for name, pairs in CHECKS.items() if not all(same_bits(*pair) for one in parts for pair in pairs(one))]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether `one` and `other`, of whatever device, have the same bits: zeros of the same sign, too."""
    return torch.equal(one.view(torch.uint8), other.to(one.device).view(torch.uint8))


def sample(device: torch.device, dtype: torch.dtype, numel: int) -> Tensor:
    """Return `numel` values of `dtype` on `device`, always the same: large, small, denormal, equal, and zeros."""
    own = torch.Generator("cpu").manual_seed(numel)
    drawn = torch.randn(numel, generator=own, dtype=torch.float32, device="cpu")
    drawn *= 10.0 ** torch.randint(-3, 3, (numel,), generator=own, device="cpu")
    drawn[::5] = drawn[::5].sign()
    drawn[1::97] *= torch.finfo(dtype).smallest_normal
    drawn[2::11] *= 0.0
    return drawn.to(dtype).to(device)


def _select(flat: Tensor) -> Pairs:
    for k in {1, flat.numel() // 100 + 1, flat.numel() // 2, flat.numel() - 1}:
        yield select([flat], [k])[0], by_keys(flat, k)


def _compress(flat: Tensor) -> Pairs:
    """All or nearly all elements of some tensors are equal; one gradient is not finite, and one not there."""
    last = torch.zeros_like(flat)
    last[-40:] = flat[:40].abs() + 1
    firsts = [flat, torch.full_like(flat, -3.5), last, torch.zeros_like(flat), flat[:300], flat[:1]]
    left, added = [one.clone() for one in firsts], [one.flip(0) for one in firsts]
    sums = [one if number in (1, 3) else one + added[number] for number, one in enumerate(firsts)]
    compressor, gradients = TopK(0.01), [added[0], None, added[2], torch.full_like(flat, torch.nan), *added[4:]]
    payloads = [compressor.compress(one.cpu(), "", 0) for one in sums]
    parts = torch.cat([one.buffer for one in payloads]).zero_().to(flat.device).split([one.nbytes for one in payloads])
    pairs, ks = [*zip(left, gradients, strict=True)], [one.layout[0][1] for one in payloads]
    spoilt, norms = compress_topk_(pairs, ks, parts, gradients, weighs=True)
    yield from zip(norms, sum_chunks(left), strict=True)
    yield spoilt, spoilt.new_tensor([0, 0, 0, 1, 0, 0])
    plain = [*(one.buffer for one in payloads), *map(compressor.error_, (one.cpu() for one in sums), payloads)]
    yield from zip([*parts, *left], plain, strict=True)


def _blank(flat: Tensor) -> Pairs:
    """Gradients that are not finite become zeros, wherever that is, and no others."""
    gradients = [flat.clone() for _ in range(4)]
    for place, bad in enumerate((torch.nan, torch.inf, -torch.inf)):
        gradients[place][(place * flat.numel() - 1) // 2] = bad
    spoilt, zeros = blank_spoilt_(gradients), torch.zeros_like(flat)
    yield from ((spoilt, spoilt.new_tensor([1, 1, 1, 0])), *zip(gradients, (zeros, zeros, zeros, flat), strict=True))


def _add_sent(flat: Tensor) -> Pairs:
    """What three ranks sent of two tensors is added, one rank after the other."""
    compressor, values, scale = TopK(0.6), flat.float().cpu(), 1 / 3
    sent, total = [compressor.compress(values.roll(rank), "", 0) for rank in range(3)], torch.zeros_like(values)
    for one in sent:
        compressor.add_(total, one, scale)
    targets = [torch.full_like(flat, 7.0, dtype=torch.float32) for _ in range(2)]
    rows, k = torch.stack([one.buffer.repeat(2) for one in sent]).to(flat.device), sent[0].layout[0][1]
    add_topk_(targets, [[(row[at : at + 8 * k], k) for row in rows] for at in (0, 8 * k)], scale, True)
    yield from ((one, total) for one in targets)


def _fold(flat: Tensor) -> Pairs:
    """A sum of three tensors, two of them first: the same bits without weights, to 1e-6 with them, as theirs differ."""
    errors = [flat, flat.flip(0), flat.roll(7)]
    for phi in (None, 0.3):
        total, into = torch.empty_like(flat, dtype=torch.float32), torch.full_like(flat, 7.0, dtype=torch.float32)
        pairs = [*zip(errors, sum_chunks(errors), strict=True)]
        (weight,) = fold_([(total, None)], [pairs[:2]], [(total, False)], phi)
        fold_([(total, weight)], [pairs[2:]], [(into, True)], phi)
        if phi is None:
            yield into, (flat.float() + errors[1].float() + errors[2].float()) / torch.full_like(into, 3.0)
        else:
            wide = torch.stack(errors).double()
            weights = phi * wide.abs().mean(1) + (1 - phi) * wide.square().mean(1).sqrt()
            plain = (wide * weights[:, None]).sum(0) / weights.sum()
            is_near = (into - plain).norm() <= 1e-6 * plain.norm()
            yield is_near, torch.ones_like(is_near)


def _cross(flat: Tensor) -> Pairs:
    matrix = flat[: flat.numel() // 25 * 25].view(25, -1)
    rows, columns = (torch.arange(1, size, 2, dtype=torch.int32, device=flat.device) for size in matrix.shape)
    crossing, added, sums = matrix[1::2, 1::2].contiguous(), matrix.clone(), matrix.clone()
    sums[1::2, 1::2] += crossing
    values = torch.empty_like(crossing)
    cross_(matrix, rows, columns, values, False)
    cross_(added, rows, columns, values, True)
    yield from ((values, crossing), (added, sums))


def _encode(kind: str, flat: Tensor) -> Pairs:
    """A CPU says what the codes are, from the same draw, as a GPU divides by a number of the host otherwise."""
    plain, seed, host = Blocks(flat.shape, kind, torch.device("cpu")), flat.numel(), flat.to("cpu", copy=True)
    drawn = torch.rand(len(flat), generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32, device="cpu")
    plain.set_(host, torch.Generator("cpu").manual_seed(seed))
    made, held = (torch.empty_like(one, device=flat.device) for one in (plain.scales, plain.codes))
    added = flat.clone()
    encode(flat, drawn.to(flat.device), held, made, plain.bits)
    decode_add_(added, held, made, plain.bits)
    yield from ((made, plain.scales), (held, plain.codes), (added, plain.add_to_(host)))


def _round(kind: type[Block8], flat: Tensor) -> Pairs:
    """What two ranks send of two tensors; a CPU says what it is, as a GPU divides by a number of the host otherwise."""
    compressor, values = kind(block=BLOCK), flat + 0.0  # without negative zeros, as sums have none
    payload = compressor.compress(values.cpu(), "", 0)
    parts = payload.buffer.repeat(2).zero_().to(flat.device).chunk(2)
    left, added = [values.clone(), flat.clone()], [torch.full_like(flat, 7.0) for _ in range(2)]
    compress_blocks_([(left[0], None), (left[1], torch.zeros_like(flat))], parts, BLOCK, kind.bits)
    add_blocks_(added, [[part, part] for part in parts], BLOCK, kind.bits, 1.0, True)
    plain = payload.buffer, compressor.error_(values.cpu(), payload), compressor.decompress(payload)
    compressor.add_(plain[2], payload)
    yield from ((one, other) for pair, other in zip((parts, left, added), plain, strict=True) for one in pair)


CHECKS: dict[str, Callable[[Tensor], Pairs]] = {
    "select": _select,
    "top-k of a bucket": _compress,
    "gradients that are not finite": _blank,
    "add what was sent": _add_sent,
    "rows and columns": _cross,
    "sum of a group": _fold,
    "8 bits": partial(_encode, "int8"),
    "4 bits": partial(_encode, "int4"),
    "levels of 8 bits": partial(_round, Block8),
    "levels of 4 bits": partial(_round, Block4),
}
"""By kernel, what it makes of a 1-D sample."""
