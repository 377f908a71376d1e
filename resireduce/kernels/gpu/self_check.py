"""Compares each kernel with the plain form in torch, on the device, for values of all kinds, many of them equal."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from resireduce.kernels.gpu.blocks import add_blocks_, compress_blocks_
from resireduce.kernels.gpu.bucket import (
    add_topk_,
    blank_spoilt_,
    compress_topk_,
    fold_,
    room_for_norms,
    select,
    sum_chunks,
)
from resireduce.kernels.gpu.one_pass import BLOCK, cross_, decode_add_, encode

NUMEL = 9 * 8192 + 77
"""Elements of a check: more than one program of any kernel processes, and not a multiple of any tile."""


def differing(device: torch.device, dtype: torch.dtype, numel: int = NUMEL) -> list[str]:
    """Return the names of the kernels that have other bits than plain torch, for `numel` values of `dtype` on `device`.

    Unless `numel` is a multiple of 16, a smaller one is checked too, since Triton compiles other code for it. The host
    waits for the device. Raises what Triton raises if it cannot compile them.
    """
    flat = sample(device, dtype, numel)
    sizes = {numel, numel // 16 * 16}
    return [name for name, same in CHECKS.items() if not all(same(flat[:size]) for size in sizes)]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether `one` and `other` have the same bits: zeros of the same sign, too."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def sample(device: torch.device, dtype: torch.dtype, numel: int) -> Tensor:
    """Return `numel` values of `dtype` on `device`, always the same: large, small, denormal, equal, and zeros."""
    own = torch.Generator("cpu").manual_seed(numel)
    drawn = torch.randn(numel, generator=own, dtype=torch.float32, device="cpu")
    drawn *= 10.0 ** torch.randint(-3, 3, (numel,), generator=own, device="cpu")
    drawn[::5] = drawn[::5].sign()
    drawn[1::97] *= torch.finfo(dtype).smallest_normal
    drawn[2::11] *= 0.0
    return drawn.to(dtype).to(device)


def _largest(flat: Tensor, k: int) -> Tensor:
    return flat.abs().sort(stable=True).indices[-k:].sort().values


def _selects(flat: Tensor) -> bool:
    n = flat.numel()
    return all(torch.equal(select([flat], [k])[0], _largest(flat, k)) for k in {1, n // 100 + 1, n // 2, n - 1})


def _compresses(flat: Tensor) -> bool:
    """Return whether a bucket has its largest taken out as by torch.

    All or nearly all elements of some of its tensors are equal; one gradient is not finite, and one not there.
    """
    last = torch.zeros_like(flat)
    last[-40:] = flat[:40].abs() + 1
    sums = [flat, torch.full_like(flat, -3.5), last, torch.zeros_like(flat), flat[:300].clone(), flat[:1].clone()]
    gradients: list[Tensor | None] = [one.flip(0) for one in sums]
    gradients[1], gradients[3] = None, torch.full_like(flat, torch.nan)
    residuals, ks = [one.clone() for one in sums], [one.numel() // 99 + 1 for one in sums]
    sizes = [-(-(flat.itemsize + 4) * k // 8) * 8 for k in ks]
    parts = torch.full((sum(sizes),), 7, dtype=torch.uint8, device=flat.device).split(sizes)
    pairs, (room, norms) = [*zip(residuals, gradients, strict=True)], room_for_norms(sums)
    same = [compress_topk_(pairs, ks, parts, gradients, room).tolist() == [0, 0, 0, 1, 0, 0]]
    same += map(torch.equal, norms, sum_chunks(residuals))
    for one, more, k, left, part in zip(sums, gradients, ks, residuals, parts, strict=True):
        whole = one if more is None or more.isnan().any() else one + more
        chosen = _largest(whole, k)
        pair = [whole[chosen].view(torch.uint8), chosen.int().view(torch.uint8)]
        sent = torch.cat(pair if flat.itemsize == 4 else pair[::-1])
        same += [torch.equal(part[: len(sent)], sent), same_bits(left, whole.index_fill(0, chosen, 0.0))]
    return all(same)


def _blanks(flat: Tensor) -> bool:
    """Return whether gradients that are not finite become zeros, wherever that is, and no others."""
    gradients = [flat.clone() for _ in range(4)]
    for place, bad in ((0, torch.nan), (1, torch.inf), (2, -torch.inf)):
        gradients[place][(place * flat.numel() - 1) // 2] = bad
    found = blank_spoilt_(gradients).tolist()
    return found == [1, 1, 1, 0] and not any(map(torch.any, gradients[:3])) and same_bits(gradients[3], flat)


def _adds_sent(flat: Tensor) -> bool:
    """Return whether what three ranks sent of two tensors is added, one rank after the other, as by torch."""
    values, scale, k = flat.float(), 1 / 3, flat.numel() // 3
    messages, sums = [], [torch.zeros_like(values) for _ in range(2)]
    for rank in range(3):
        parts = []
        for total in sums:
            indices = torch.arange(rank, rank + 2 * k, 2, device=flat.device)
            sent = values.roll(rank)[indices]
            parts += [sent.view(torch.uint8), indices.to(torch.int32).view(torch.uint8)]
            total[indices] += sent * scale
        messages.append(torch.cat(parts))
    rows = torch.stack(messages)
    targets = [torch.full_like(values, 7.0) for _ in sums]
    add_topk_(targets, [[(row[at : at + 8 * k], k) for row in rows] for at in (0, 8 * k)], scale, True)
    return all(map(same_bits, targets, sums))


def _folds(flat: Tensor) -> bool:
    """Return whether a sum of three tensors by weights is the same to 1e-6, since last bits of weights may differ, and
    has the same bits without weights; the first two are added first, and the third with what is divided."""
    errors = [flat, flat.flip(0), flat.roll(7)]
    same = True
    for phi in (None, 0.3):
        total, into = torch.empty_like(flat, dtype=torch.float32), torch.full_like(flat, 7.0, dtype=torch.float32)
        pairs = [*zip(errors, sum_chunks(errors), strict=True)]
        (weight,) = fold_([(total, None)], [pairs[:2]], [(total, False)], phi)
        fold_([(total, weight)], [pairs[2:]], [(into, True)], phi)
        numbers = [one.float() for one in errors]
        weights = [torch.ones((), device=flat.device) for _ in errors]
        if phi is not None:
            wide = [one.double() for one in errors]
            weights = [(phi * one.abs().mean() + (1 - phi) * one.square().mean().sqrt()).float() for one in wide]
        plain = (numbers[0] * weights[0] + numbers[1] * weights[1] + numbers[2] * weights[2]) / sum(weights)
        same &= same_bits(into, plain) if phi is None else bool((into - plain).norm() <= 1e-6 * plain.norm())
    return same


def _crosses(flat: Tensor) -> bool:
    matrix = flat[: flat.numel() // 25 * 25].view(25, -1)
    rows, columns = (torch.arange(1, size, 2, dtype=torch.int32, device=flat.device) for size in matrix.shape)
    crossing, added = matrix[1::2, 1::2].contiguous(), matrix.clone()
    values = torch.empty_like(crossing)
    cross_(matrix, rows, columns, values, False)
    cross_(added, rows, columns, values, True)
    sums = matrix.clone()
    sums[1::2, 1::2] += crossing
    return same_bits(values, crossing) and same_bits(added, sums)


def _codes(bits: int, flat: Tensor) -> bool:
    numel, device = flat.numel(), flat.device
    drawn = sample(device, torch.float32, numel).abs().remainder(1.0)
    scales, codes = plain_codes(flat, drawn, bits)
    kind = torch.int8 if bits == 8 else torch.uint8
    made, held = torch.empty_like(scales), torch.empty(-(-numel * bits // 8), dtype=kind, device=device)
    encode(flat, drawn, held, made, bits)
    added, values = flat.clone(), (codes * scales.repeat_interleave(BLOCK)[:numel]).to(flat.dtype)
    decode_add_(added, held, made, bits)
    return same_bits(made, scales) and same_bits(added, flat + values)


def plain_codes(flat: Tensor, drawn: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the scale of each block of 1-D `flat`, and the code of each element, both float32, by plain torch.

    A code is the element over its scale plus what is `drawn` for it, rounded down; of 8 or 4 `bits`.
    """
    largest = torch.tensor(2.0 ** (bits - 1) - 1, device=flat.device)
    values = torch.nn.functional.pad(flat.float(), (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = values.abs().amax(1) / largest
    steps = scales.clamp(min=torch.finfo(torch.float32).tiny)
    codes = (values / steps[:, None]).view(-1)[: flat.numel()].add(drawn).floor()
    return scales, codes.clamp(-largest, largest)


def _levels(bits: int, flat: Tensor) -> bool:
    """Return whether levels of 8 or 4 `bits` with a scale for each block leave, and add up to, what they should: two
    tensors, of which two ranks send the same."""
    numel, blocks = flat.numel(), -(-flat.numel() // BLOCK)
    most = torch.tensor(2.0 ** (bits - 1) - 1, device=flat.device)
    values = torch.nn.functional.pad(flat.float(), (0, -numel % BLOCK)).view(-1, BLOCK)
    scales = values.abs().amax(1, keepdim=True)
    levels = (values / scales.clamp(min=torch.finfo(torch.float32).tiny)).mul(most).round()
    levels += 0.0  # no zero that is sent is negative
    sent = (levels / most * scales).view(-1)[:numel].to(flat.dtype)
    size = -(-(4 * blocks + bits * -(-numel // 8)) // 8) * 8
    message = torch.zeros(2 * size, dtype=torch.uint8, device=flat.device)
    left, added = [flat.clone(), flat.clone()], [torch.full_like(flat, 7.0) for _ in range(2)]
    sums = [(left[0], None), (left[1], torch.zeros_like(flat))]
    compress_blocks_(sums, message.split(size), BLOCK, bits)
    add_blocks_(added, [[part, part] for part in message.split(size)], BLOCK, bits, 1.0, True)
    same = same_bits(left[0], flat - sent) and same_bits(left[1], flat + 0.0 - sent)
    return same and all(torch.equal(one, sent + sent) for one in added)


CHECKS: dict[str, Callable[[Tensor], bool]] = {
    "select": _selects,
    "top-k of a bucket": _compresses,
    "gradients that are not finite": _blanks,
    "add what was sent": _adds_sent,
    "rows and columns": _crosses,
    "sum of a group": _folds,
    "8 bits": partial(_codes, 8),
    "4 bits": partial(_codes, 4),
    "levels of 8 bits": partial(_levels, 8),
    "levels of 4 bits": partial(_levels, 4),
}
"""By kernel, whether it has the bits of plain torch for a 1-D sample."""
