"""Norms, weighted sums and blocks of a matrix: compiled code has the bits of the plain form in torch and NumPy."""

import math

import pytest
import torch

from resireduce.kernels import ops
from resireduce.kernels.ops import SWITCH, l1_and_l2_norm, l1_norms, mean_norm
from resireduce.planning.memory import LiveBytes
from resireduce.residuals.matrix import add_crossing_, cut_crossing
from tests.compiled import bits, both, needs_compiler, values

pytestmark = pytest.mark.usefixtures("found_anew")


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (2, 2), (16, 256), (17, 257), (128, 3000), (4097, 33)])
def test_norms_of_rows_and_columns_are_torchs_in_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    matrix = values(shape[0] * shape[1], "normal").view(shape)
    expected = [torch.linalg.vector_norm(matrix, 1, dim=dim) for dim in (1, 0)]
    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        for found, norm in zip(both(monkeypatch, lambda: [*l1_norms(matrix, torch.float32)]), expected, strict=True):
            assert torch.equal(found[0], norm) and torch.equal(found[1], norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "denormal", "negative zero"])
@pytest.mark.parametrize(("shape", "of"), [((2, 2), 2), ((17, 257), 2), ((40, 1024), 50), ((2, 70_000), 3)])
def test_rows_that_cross_columns_are_added_to_and_copied_bit_for_bit(
    shape: tuple[int, int], of: int, kind: str, dtype: torch.dtype
) -> None:
    """One of so many rows and columns."""
    matrix, block = (values(shape[0] * shape[1], one).view(shape).to(dtype) for one in (kind, "normal"))
    source = torch.Generator().manual_seed(1)
    rows, columns = (torch.randperm(size, generator=source)[: max(1, size // of)].sort().values for size in shape)
    expected = matrix.clone()
    expected[rows[:, None], columns] += block[rows][:, columns]
    add_crossing_(matrix, rows.int(), columns.int(), block[rows][:, columns])
    assert torch.equal(bits(matrix), bits(expected))
    assert torch.equal(bits(cut_crossing(matrix, rows.int(), columns.int())), bits(matrix[rows][:, columns]))


@pytest.mark.parametrize("columns", [[0, 4], [-1, 2]])
def test_columns_that_there_are_not_are_refused_and_not_written_to(columns: list[int]) -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        add_crossing_(torch.zeros(3, 4), torch.tensor([1]).int(), torch.tensor(columns).int(), torch.ones(1, 2))


@needs_compiler
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 65_536, 200_001])
def test_weights_of_norms_are_the_same_bit_for_bit(monkeypatch: pytest.MonkeyPatch, n: int, phi: float) -> None:
    x = torch.stack([values(n, kind) for kind in ("normal", "denormal", "huge", "uneven")])
    x = torch.cat((x, torch.full((1, n), math.inf)))
    norms = [l1_and_l2_norm(row) for row in x]
    expected = [phi * l1 / n + (1 - phi) * l2 / n**0.5 for l1, l2 in norms]
    for one, other in both(monkeypatch, lambda: [mean_norm(row, phi) for row in x]):
        assert torch.equal(bits(one), bits(other))
        assert torch.equal(bits(one), bits(expected.pop(0))) and (one.dtype, one.shape) == (torch.float32, ())


@needs_compiler
@pytest.mark.parametrize("switch", ["0", "1"])
def test_norms_are_the_same_in_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    monkeypatch.setenv(SWITCH, switch)
    x = values(9 * 65_536 + 1003, "normal")
    whole = [float(norm) for norm in l1_and_l2_norm(x)]
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert [float(norm) for norm in l1_and_l2_norm(x)] == whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_norms_are_those_of_exact_sums(dtype: torch.dtype) -> None:
    x = values(70_007, "normal").to(dtype)
    before = x.clone()
    l1, l2 = l1_and_l2_norm(x.view(7, -1))
    assert torch.equal(x, before)
    magnitudes = [abs(value) for value in x.tolist()]
    expected = math.fsum(magnitudes), math.sqrt(math.fsum(value * value for value in magnitudes))
    assert l1.dtype == torch.promote_types(dtype, torch.float32)
    assert [float(l1), float(l2)] == pytest.approx(expected, rel=1e-7 if dtype != torch.float64 else 1e-14)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_norms_hold_the_memory_that_is_planned(dtype: torch.dtype) -> None:
    peaks = []
    for device in ("cpu", "meta"):
        x = torch.zeros(200_000, dtype=dtype, device=device)
        with LiveBytes(lambda tensor: True) as alive:
            l1_and_l2_norm(x)
        peaks.append(alive.peak_bytes)
    assert peaks[0] == peaks[1] and (dtype != torch.float32 or peaks[0] < 1000)


def test_many_elements_have_the_norm_that_they_have() -> None:
    n = 1 << 25  # sums of ones in float32 come no further than half of it
    assert [float(norm) for norm in l1_and_l2_norm(torch.ones(n))] == [n, pytest.approx(n**0.5)]
