"""Compares each kernel with the plain form in torch, on the device, for values of all kinds, many of them equal."""

from collections.abc import Callable

import torch
from torch import Tensor

from resireduce.kernels.gpu import selections
from resireduce.kernels.gpu.blocks import BLOCK, decode_add_, encode
from resireduce.kernels.gpu.crossing import add_crossing_, cut_crossing_into
from resireduce.kernels.gpu.finite import zero_unless_finite_
from resireduce.kernels.gpu.mean_norm import mean_norm
from resireduce.kernels.gpu.selections import same_bits
from resireduce.kernels.gpu.sent import add_sent_
from resireduce.kernels.gpu.take_out import take_out_
from resireduce.kernels.gpu.weighted import add_weighted

NUMEL = 9 * 8192 + 77
"""Elements of a check: more than one program of any kernel processes, and not a multiple of any tile."""


def differing(device: torch.device, dtype: torch.dtype, numel: int = NUMEL) -> list[str]:
    """Return the names of the kernels that have other bits than plain torch, for `numel` values of `dtype` on `device`.

    Unless `numel` is a multiple of 16, a smaller one is checked too, since Triton compiles other code for it. The host
    waits for the device. Raises what Triton raises if it cannot compile them.
    """
    return _differing(CHECKS, sample(device, dtype, numel))


def differing_at_once(device: torch.device, dtype: torch.dtype, numel: int = NUMEL) -> list[str]:
    """Return what `differing` does, for the selection in one launch, which the library can do without.

    device, dtype, numel: as for `differing`.
    """
    return _differing(CHECKS_AT_ONCE, sample(device, dtype, numel))


def _differing(checks: dict[str, Callable[[Tensor], bool]], flat: Tensor) -> list[str]:
    sizes = {flat.numel(), flat.numel() // 16 * 16}
    return [name for name, same in checks.items() if not all(same(flat[:size]) for size in sizes)]


def sample(device: torch.device, dtype: torch.dtype, numel: int) -> Tensor:
    """Return `numel` values of `dtype` on `device`, always the same: large, small, denormal, equal, and zeros."""
    own = torch.Generator("cpu").manual_seed(numel)
    drawn = torch.randn(numel, generator=own, dtype=torch.float32, device="cpu")
    drawn *= 10.0 ** torch.randint(-3, 3, (numel,), generator=own, device="cpu")
    drawn[::5] = drawn[::5].sign()
    drawn[1::97] *= torch.finfo(dtype).smallest_normal
    drawn[2::11] *= 0.0
    return drawn.to(dtype).to(device)


def _zeroes(flat: Tensor) -> bool:
    found = []
    for bad in (0.0, torch.nan, torch.inf):
        gradient = flat.clone()
        gradient[-1] += bad
        expected = torch.zeros_like(flat) if bad else gradient.clone()
        found += [bool(zero_unless_finite_(gradient)) is (bad == 0), same_bits(gradient, expected)]
    return all(found)


def _takes_out(flat: Tensor) -> bool:
    indices = torch.arange(0, flat.numel(), 3, device=flat.device)
    left = flat.clone()
    taken = take_out_(left, indices)
    return same_bits(taken, flat[indices]) and same_bits(left, flat.index_fill(0, indices, 0.0))


def _adds_sent(flat: Tensor) -> bool:
    values, scale = flat.float(), 1 / 3
    indices = torch.arange(1, values.numel(), 3, device=flat.device)
    packed = torch.cat((values[indices].view(torch.uint8), indices.to(torch.int32).view(torch.uint8)))
    added, sums = torch.ones_like(values), torch.ones_like(values)
    add_sent_(added, packed, indices.numel(), scale)
    sums[indices] += values[indices] * scale
    return same_bits(added, sums)


def _weights(flat: Tensor) -> bool:
    """Return whether weighted sums are the same, and the mean of norms to 1e-6, since its last bits may differ."""
    found, first, own = [], flat.new_tensor(0.7), flat.new_tensor(0.3)
    more = flat.flip(0)
    for is_one, is_last in ((True, True), (False, False)):
        into, weights = torch.empty_like(flat), first.clone()
        add_weighted(into, flat, more, own, weights, is_one, is_last)
        both = (flat * first if is_one else flat) + more * own
        expected = both / (first + own) if is_last else both
        found += [same_bits(into, expected), torch.equal(weights, first + own)]
    numbers = flat.double()
    mean = 0.3 * numbers.abs().mean() + 0.7 * numbers.square().mean().sqrt()
    return all(found) and bool((mean_norm(flat, 0.3) - mean).abs() <= 1e-6 * mean)


def _crosses(flat: Tensor) -> bool:
    matrix = flat[: flat.numel() // 25 * 25].view(25, -1)
    rows, columns = (torch.arange(1, size, 2, dtype=torch.int32, device=flat.device) for size in matrix.shape)
    crossing, added = matrix[1::2, 1::2].contiguous(), matrix.clone()
    values = torch.empty_like(crossing)
    cut_crossing_into(values, matrix, rows, columns)
    add_crossing_(added, rows, columns, values)
    sums = matrix.clone()
    sums[1::2, 1::2] += crossing
    return same_bits(values, crossing) and same_bits(added, sums)


def _codes(bits: int) -> Callable[[Tensor], bool]:
    def same(flat: Tensor) -> bool:
        numel, blocks = flat.numel(), -(-flat.numel() // BLOCK)
        drawn = sample(flat.device, torch.float32, numel).abs().remainder(1.0)
        scales, codes = plain_codes(flat, drawn, bits)
        made = torch.empty(blocks, dtype=torch.float32, device=flat.device)
        held = torch.empty(
            numel if bits == 8 else -(-numel // 2), dtype=torch.int8 if bits == 8 else torch.uint8, device=flat.device
        )
        encode(flat, drawn, held, made, bits)
        added, values = flat.clone(), (codes * scales.repeat_interleave(BLOCK)[:numel]).to(flat.dtype)
        decode_add_(added, held, made, bits)
        return same_bits(made, scales) and same_bits(added, flat + values)

    return same


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


CHECKS: dict[str, Callable[[Tensor], bool]] = {
    "select": selections.selects,
    "select of many": selections.selects_of_many,
    "sum of many": selections.adds_of_many,
    "finite": _zeroes,
    "take out": _takes_out,
    "add what was sent": _adds_sent,
    "rows and columns": _crosses,
    "weighted": _weights,
    "8 bits": _codes(8),
    "4 bits": _codes(4),
}
"""By kernel, whether it has the bits of plain torch for a 1-D sample."""
CHECKS_AT_ONCE: dict[str, Callable[[Tensor], bool]] = {
    "select in one launch": selections.selects_at_once,
    "sum in one launch": selections.adds_at_once,
    "many in one launch": selections.of_many_at_once,
}
"""As `CHECKS`, of what the library can do without."""
