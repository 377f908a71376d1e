"""Selection in all tensors of a bucket, in Triton's interpreter: `tests/library/test_triton.py` runs this.

Oracles are NumPy's, from the definitions.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from resireduce.kernels.gpu import bucket
from resireduce.kernels.gpu.bucket import add_topk_, compress_topk_, fold_, select, sum_chunks
from resireduce.kernels.gpu.one_pass import launch

FLOATS = [torch.float32, torch.float16]
ROOM = torch.empty(1 << 16, dtype=torch.uint8)
"""Memory for the messages of all ranks."""


def drawn(n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)


def kinds(n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Elements that are hard to choose from, by what makes them so."""
    values, one_place = drawn(n, dtype), torch.zeros(n, dtype=dtype)
    one_place[n // 3 : n // 3 + 40] = values[:40].abs() + 1000
    near = torch.ones(n, dtype=dtype)
    near[::7] = 1 + torch.finfo(dtype).eps  # all in one value of the leading bits, and differ in the last
    return {
        "normal": values,
        "constant": torch.full((n,), -3.5, dtype=dtype),
        "zeros of both signs": torch.zeros(n, dtype=dtype).mul_(values.sign()),
        "ties": values.sign() * 2,
        "denormal": values.double().mul(torch.finfo(dtype).smallest_normal / 8).to(dtype),
        "all mass in one place": one_place,
        "one bit apart": near,
        "infinite": torch.where(values > 1, torch.inf, values),
    }


def last_of_a_stable_sort(flat: Tensor, k: int) -> list[int]:
    """Return the k largest by a stable sort in NumPy: of equal magnitudes those of the highest indices."""
    magnitudes = np.abs(flat.double().numpy())
    return sorted(np.argsort(magnitudes, kind="stable")[-k:].tolist())


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "TILE", 128)
    monkeypatch.setattr(bucket, "SENT_TILE", 64)


def compressed(gradients: list[Tensor | None], residuals: list[Tensor], ks: list[int]) -> tuple[list[int], Tensor]:
    """Return which gradients were not finite, and the message."""
    nbytes = [-(-k * (residuals[0].element_size() + 4) // 8) * 8 for k in ks]
    message = torch.full((sum(nbytes),), 7, dtype=torch.uint8)
    pairs = [*zip(residuals, gradients, strict=True)]
    spoilt, _ = compress_topk_(pairs, ks, message.split(nbytes), gradients)
    return spoilt.tolist(), message


def expected(sums: list[Tensor], ks: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Return the message of `sums`, and what it leaves of them."""
    parts, left = [], []
    for one, k in zip(sums, ks, strict=True):
        chosen = torch.tensor(last_of_a_stable_sort(one, k))
        pair = [one[chosen].view(torch.uint8), chosen.to(torch.int32).view(torch.uint8)]
        whole = torch.cat(pair if one.element_size() == 4 else pair[::-1])
        parts.append(torch.nn.functional.pad(whole, (0, -len(whole) % 8)))
        left.append(one.index_fill(0, chosen, 0.0))
    return torch.cat(parts), left


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOATS)
def test_each_tensor_of_a_bucket_has_its_own_largest_taken_out(dtype: torch.dtype) -> None:
    values = kinds(301, dtype)
    sums = [*values.values(), drawn(1, dtype), drawn(256, dtype), drawn(257, dtype)]
    gradients: list[Tensor | None] = [None if number % 3 == 2 else one.flip(0) for number, one in enumerate(sums)]
    gradients[[*values].index("infinite")] = torch.zeros(301, dtype=dtype)
    residuals = [one.clone() for one in sums]
    sums = [one if more is None else one + more for one, more in zip(sums, gradients, strict=True)]
    ks = [*range(1, 9), 1, 255, 257]
    message, left = expected(sums, ks)
    assert compressed(gradients, residuals, ks)[1].tolist() == message.tolist()
    assert all(map(same_bits, residuals, left))


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_that_are_not_finite_are_zeros(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    gradients: list[Tensor] = []
    for place, bad in ((0, torch.nan), (150, torch.inf), (299, -torch.inf), (5, largest)):
        gradients.append(drawn(300, dtype).index_fill(0, torch.tensor(place), bad))
    residuals = [drawn(300, dtype, seed=1).abs() for _ in range(5)]
    sums = [*(one.clone() for one in residuals[:3]), residuals[3] + gradients[3], residuals[4].clone()]
    message, left = expected(sums, [7] * 5)
    found, made = compressed([*gradients, None], residuals, [7] * 5)
    assert found == [1, 1, 1, 0, 0] and made.tolist() == message.tolist()
    assert all(map(same_bits, residuals, left))


@pytest.mark.parametrize("apart", [0, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_what_has_come_is_added_to_its_places_rank_by_rank(zero: bool, apart: int) -> None:
    """Three ranks, whose messages lie equally far apart, or not; several tiles, and more entries than one load has."""
    sizes, ks = [1000, 5, 700, 200], [300, 5, 699, 1]
    targets, sums = ([drawn(n, seed=3) for n in sizes] for _ in range(2))
    if zero:
        sums = [torch.zeros(n) for n in sizes]
    sent: list[list[tuple[Tensor, int]]] = [[] for _ in sizes]
    for rank in range(3):
        _, message = compressed([None] * 4, [drawn(n, seed=rank) for n in sizes], ks)
        where = rank * (len(message) + apart * rank)
        room = ROOM[where : where + len(message)].copy_(message)
        for own, k, part in zip(sent, ks, room.split([8 * k for k in ks]), strict=True):
            own.append((part, k))
        for one, n, k in zip(sums, sizes, ks, strict=True):
            chosen = last_of_a_stable_sort(drawn(n, seed=rank), k)
            one.numpy()[chosen] += drawn(n, seed=rank).numpy()[chosen] * np.float32(1 / 3)
    add_topk_(targets, sent, 1 / 3, zero)
    assert all(map(same_bits, targets, sums))


@pytest.mark.parametrize("kind", kinds(300, torch.float32))
def test_a_selection_is_the_end_of_a_stable_sort(kind: str) -> None:
    flat = kinds(401, torch.float32)[kind]
    parts, ks = [flat, flat[:200], flat[:300]], [131, 3, 300]
    assert [one.tolist() for one in select(parts, ks)] == [*map(last_of_a_stable_sort, parts, ks)]


def test_the_last_program_adds_up_more_chunks_than_one_load_has() -> None:
    """Where nothing has been counted before, all magnitudes are above the limit, and none equals it."""
    flat, chunks = drawn(64 * 520 - 7), 520
    grid, table = bucket.table_of([bucket.row_of(flat, k=1)], 64, flat)
    counts, arrived = torch.zeros(4 * 256, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    until = torch.empty(2 * chunks, dtype=torch.int32)
    launch(bucket._count_selected, grid, table, flat.view(torch.int32), counts, until, arrived, 31, 32)
    above = [*range(64, 64 * chunks, 64), len(flat)]
    assert until.tolist() == above + above[-1:] * chunks and arrived.tolist() == [0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_left_has_the_sums_of_its_chunks(dtype: torch.dtype) -> None:
    """What is written beside a message is what a launch of its own writes, and NumPy's sums."""
    for first in kinds(701, dtype).values():
        left, ks = [first.clone(), drawn(3, dtype), drawn(256, dtype, seed=1)], [9, 2, 1]
        nbytes = [-(-k * (first.element_size() + 4) // 8) * 8 for k in ks]
        parts = torch.zeros(sum(nbytes), dtype=torch.uint8).split(nbytes)
        _, norms = compress_topk_([(one, None) for one in left], ks, parts, weighs=True)
        for one, own, alone in zip(left, norms, sum_chunks(left), strict=True):
            chunks = [part.abs().double().numpy() for part in one.split(256)]
            expected = [[part.sum(), (part**2).sum()] for part in chunks]
            assert torch.equal(own, alone) and np.allclose(own.numpy(), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("phi", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_errors_are_folded_into_their_groups(dtype: torch.dtype, phi: float | None) -> None:
    """One group begins, one goes on, and two end, of which one has had all of its errors at once, and one has zeros."""
    sizes, numbers = [701, 300, 5, 40], [2, 1, 3, 1]
    errors = [[drawn(n, dtype, seed=9 * n + one) for one in range(k)] for n, k in zip(sizes, numbers, strict=True)]
    errors[3][0].zero_()
    before = [None, (drawn(300, seed=7), torch.tensor(0.75)), None, None]
    ends = [False, True, True, True]
    weights, sums = [], []
    for begun, own, is_last in zip(before, errors, ends, strict=True):
        total, weight = (None, np.float32(0)) if begun is None else (begun[0].numpy(), np.float32(begun[1]))
        for one in own:
            x = one.double().numpy()
            by_norms = 1.0 if phi is None else phi * np.abs(x).mean() + (1 - phi) * np.sqrt((x**2).mean())
            added = one.float().numpy() * np.float32(by_norms)
            total, weight = added if total is None else total + added, weight + np.float32(by_norms)
        weights.append(weight)
        sums.append(total / max(weight, np.finfo(np.float32).tiny) if is_last else total)
    given = [(torch.full((n,), 7.0), None) if one is None else one for n, one in zip(sizes, before, strict=True)]
    if dtype == torch.float32:
        given[2] = errors[2][0], None  # the sum is formed in the memory of its first error
    listed = [[*zip(own, sum_chunks(own), strict=True)] for own in errors]
    into = [
        (torch.full((n,), 7.0) if is_last else total, is_last)
        for n, is_last, (total, _) in zip(sizes, ends, given, strict=True)
    ]
    found = fold_(given, listed, into, phi)
    exact = {"rtol": 0.0 if phi is None else 1e-6, "atol": 0.0 if phi is None else 1e-6}
    assert np.allclose([float(one) for one in found], weights, **exact)
    for (one, _), expected in zip(into, sums, strict=True):
        assert np.allclose(one.numpy(), expected, **exact)


def test_a_weight_is_formed_of_more_chunks_than_one_load_has() -> None:
    error, norms = drawn(5), drawn(5000).abs().double().view(-1, 2)
    (weight,) = fold_([(torch.empty(5), None)], [[(error, norms)]], [(torch.empty(5), False)], 0.3)
    magnitudes, squares = norms.sum(0).tolist()
    assert float(weight) == pytest.approx(0.3 * magnitudes / 5 + 0.7 * (squares / 5) ** 0.5, rel=1e-6)
