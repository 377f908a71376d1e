"""Compares each form of selection with a sort and a sum in torch, for values of all kinds, many of them equal."""

from collections.abc import Callable

import torch
from torch import Tensor

from resireduce.kernels.gpu import launches, near, once
from resireduce.kernels.gpu.select import select, take_largest_


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether `one` and `other` have the same bits: zeros of the same sign, too."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def selects(flat: Tensor) -> bool:
    """Return whether the form in several launches selects of 1-D `flat` as a sort does."""
    return _selects_each(launches.selected, flat)


def selects_at_once(flat: Tensor) -> bool:
    """Return whether the form in one launch selects of 1-D `flat`, and of equal elements, as a sort does."""
    return _selects_each(once.selected, flat) and all(_selects_each(once.selected, one) for one in _equal(flat))


def _equal(flat: Tensor) -> list[Tensor]:
    """Return variants of `flat` in which all or nearly all elements are equal, and shorter ones."""
    last = torch.zeros_like(flat)
    last[-40:] = flat[:40].abs() + 1
    return [torch.full_like(flat, -3.5), torch.zeros_like(flat), last, flat[:300].contiguous()]


def adds_at_once(flat: Tensor) -> bool:
    """Return whether the form in one launch adds to 1-D `flat` as torch does, and takes out what a sort selects."""
    return _adds(lambda values, k, added: once.selected(values, k, None, added), flat) and _takes_each(flat)


def _takes_each(flat: Tensor, at_once: bool = True) -> bool:
    """Return whether the largest elements of a sum are taken out as by torch."""
    k, added = flat.numel() // 100 + 1, flat.flip(0)
    left, expected = flat.clone(), flat + added
    into = torch.empty(k, dtype=flat.dtype, device=flat.device), torch.empty(k, dtype=torch.int32, device=flat.device)
    take_largest_(left, k, into, added, at_once)
    indices = expected.abs().sort(stable=True).indices[-k:].sort().values
    taken = same_bits(into[0], expected[indices]) and torch.equal(into[1].long(), indices)
    return taken and same_bits(left, expected.index_fill_(0, indices, 0.0))


def selects_of_many(flat: Tensor) -> bool:
    """Return whether the selection of 1-D `flat`, repeated until a sample is taken, equals that of a sort."""
    many = flat.repeat(-(-near.NARROW // flat.numel()))
    return _selects_each(_in_launches, many, {many.numel() // 1000 + 1, many.numel() // 100 + 1})


def adds_of_many(flat: Tensor) -> bool:
    """Return whether a sum with 1-D `flat`, repeated like this, equals torch's, and its largest are taken out."""
    many = flat.repeat(-(-near.NARROW // flat.numel()))
    return _adds(_in_launches, many) and _takes_each(many, False)


def _in_launches(flat: Tensor, k: int, added: Tensor | None = None) -> Tensor:
    return select(flat, k, added, at_once=False)


def of_many_at_once(flat: Tensor) -> bool:
    """Return whether both hold for 1-D `flat`, repeated like this, with one launch for sample and near elements."""
    many = flat.repeat(-(-near.NARROW // flat.numel()))
    return _selects_each(select, many, {many.numel() // 1000 + 1, many.numel() // 100 + 1}) and _takes_each(many)


def _selects_each(form: Callable[[Tensor, int], Tensor], flat: Tensor, ks: set[int] | None = None) -> bool:
    """Return whether `form` selects of 1-D `flat` as a sort does, for each of `ks`, or for a few numbers."""
    n, order = flat.numel(), flat.abs().sort(stable=True).indices
    return all(torch.equal(form(flat, k), order[-k:].sort().values) for k in ks or {1, n // 100 + 1, n // 2, n - 1})


def _adds(form: Callable[[Tensor, int, Tensor], Tensor], flat: Tensor) -> bool:
    """Return whether `form` adds as torch does, and then selects as a sort does."""
    added, k, left = flat.flip(0), flat.numel() // 100 + 1, flat.clone()
    expected = flat + added
    indices = form(left, k, added)
    return same_bits(left, expected) and torch.equal(
        indices, expected.abs().sort(stable=True).indices[-k:].sort().values
    )
