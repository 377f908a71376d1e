"""Contracts of every scheme; test_formulas has the paper's formulas, test_residual_properties what always holds."""

import pytest
import torch
from torch import nn

from resireduce.compressors.topk import TopK
from resireduce.grouping import Grouping
from resireduce.kernels import ops
from resireduce.kernels.ops import mean_norm
from resireduce.residuals.base import PartialResidual, Residuals, select
from resireduce.residuals.group import MemberResidual, WeightedResidual
from resireduce.residuals.matrix import RowsColumnsResidual
from resireduce.scheme import SCHEMES, build_residual

SHAPES = {"a": (30, 40), "b": (30, 40), "c": (30, 40), "big": (50, 60), "other": (20, 10)}
GROUPING = Grouping(groups=(("a", "b", "c"),), specific=("big",))


def registered(residual: Residuals, dtype: torch.dtype = torch.float64) -> Residuals:
    for name, shape in SHAPES.items():
        residual.of(name).register(name, torch.empty(shape, dtype=dtype))
    return residual


def gradients(step: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) * (i + 1)
            for i, (name, shape) in enumerate(SHAPES.items())}  # fmt: skip


def step(residual: Residuals, number: int, order: list[str], density: float = 0.1) -> dict[str, torch.Tensor]:
    """One step with gradients arriving in `order`. Returns what each tensor sent."""
    compressor, sent, inputs = TopK(density), {}, gradients(number)
    for name in order:
        grad = residual.of(name).compensate_(inputs[name], name)
        payload = compressor.compress(grad, name, number)
        sent[name] = compressor.decompress(payload)
        residual.of(name).update(name, lambda grad=grad, payload=payload: compressor.error_(grad, payload), number)
    residual.end_step(number)
    return sent


def test_bytes_of_each_scheme_are_the_papers_arithmetic() -> None:
    def nbytes(scheme: str) -> int:
        return registered(build_residual(scheme, GROUPING)).nbytes()

    element = 8
    everything = (3 * 1200 + 3000 + 200) * element
    block = 25 * 30 * element + (25 + 30) * 4
    assert nbytes("baseline") == everything and nbytes("none") == 0
    assert nbytes("w") == everything - 2 * 1200 * element
    assert nbytes("2d") == everything - 3000 * element + block
    assert nbytes("w+2d") == nbytes("w") + nbytes("2d") - everything
    assert nbytes("a") == nbytes("member") == nbytes("w")
    assert nbytes("d") == everything - 3000 * element + 12 * 60 * element + 12 * 4
    assert nbytes("partial") == everything / 2


def test_a_group_without_all_members_averages_those_that_came() -> None:
    residual = registered(build_residual("w", GROUPING))
    only = torch.randn(30, 40, dtype=torch.float64)
    residual.of("a").update("a", only.clone, 0)
    residual.end_step(0)
    torch.testing.assert_close(residual.tensors()["weighted.a"], only)
    residual.end_step(1)
    torch.testing.assert_close(residual.tensors()["weighted.a"], only, msg="a step without members changes nothing")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("order", ["cba", "bca", "ac", "b"])
def test_an_average_is_formed_in_the_residuals_own_memory_each_operation_rounded(
    order: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "PIECE", 7)
    if not compiled:
        monkeypatch.setattr(ops, "library", lambda: None)
    residual = registered(build_residual("w", GROUPING), torch.float32)
    held = residual.tensors()["weighted.a"]
    errors = {name: tensor for name, tensor in gradients(0, torch.float32).items() if name in order}
    weights = {name: mean_norm(tensor, 0.5) for name, tensor in errors.items()}
    last, *others = sorted(order, reverse=True)
    total, weight = errors[last] * weights[last], weights[last]
    for name in others:
        total, weight = total + errors[name] * weights[name], weight + weights[name]
    for name in order:
        residual.of(name).update(name, errors[name].clone, 0)
    residual.end_step(0)
    stored = residual.tensors()["weighted.a"]
    assert torch.equal(stored, total / weight) and stored.data_ptr() == held.data_ptr()


def test_part_of_a_larger_piece_of_memory_is_not_held_until_the_group_is_complete() -> None:
    residual = registered(build_residual("w", GROUPING))
    both = torch.ones(2, 30, 40, dtype=torch.float64)
    residual.of("c").update("c", lambda: both[0], 0)
    both.fill_(torch.nan)
    residual.of("b").update("b", lambda: torch.ones(30, 40, dtype=torch.float64), 0)
    residual.of("a").update("a", lambda: torch.ones(30, 40, dtype=torch.float64), 0)
    assert torch.equal(residual.tensors()["weighted.a"], torch.ones(30, 40, dtype=torch.float64))


def test_2d_alters_only_its_block_and_sees_convolutions_as_matrices() -> None:
    residual = RowsColumnsResidual(grouping=Grouping(specific=("conv",)))
    residual.register("conv", nn.Conv2d(16, 10, 3).weight)
    error = torch.zeros(10, 16, 3, 3)
    error[2, 5, 1, 1], error[7, 0, 0, 0] = 3.0, -2.0
    residual.update("conv", error.clone, 0)
    assert torch.equal(residual.compensate_(torch.zeros(10, 16, 3, 3), "conv"), error)
    assert residual.tensors()["rows_columns.conv"].shape == (5, 72)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_storage_in_another_precision_is_within_its_rounding(scheme: str, dtype: str) -> None:
    exact, stored = registered(build_residual(scheme, GROUPING)), registered(build_residual(scheme, GROUPING, dtype))
    for number in range(2):
        step(exact, number, list(SHAPES)), step(stored, number, list(SHAPES))
    width = {"bfloat16": 2, "float16": 2, "float64": 8}[dtype]
    values = [name for name in exact.tensors() if exact.tensors()[name].is_floating_point()]
    for name in values:
        assert stored.tensors()[name].nbytes * 8 == exact.tensors()[name].nbytes * width
    if scheme in ("baseline", "w"):
        for name in values:
            a, b = exact.tensors()[name], stored.tensors()[name].double()
            assert ((a - b).abs() <= 0.05 * a.abs().max()).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_and_sums_of_half_precision_are_formed_in_float32(dtype: torch.dtype) -> None:
    # 30,000 equal errors: their L1 norm, 30,000 x 0.125, is not a number that 16 bits can add up to.
    grouping = Grouping(groups=(("a", "b"),))
    residual = WeightedResidual(grouping=grouping)
    errors = {"a": torch.full((100, 300), 0.125, dtype=dtype), "b": torch.full((100, 300), 0.25, dtype=dtype)}
    for name, error in errors.items():
        residual.register(name, error)
    for name, error in errors.items():
        residual.update(name, lambda error=error: error, 0)
    residual.end_step(0)
    (stored,) = residual.tensors().values()
    exact = (0.125 * 0.125 + 0.25 * 0.25) / (0.125 + 0.25)
    assert stored.dtype == dtype
    assert torch.equal(stored, torch.full_like(stored, exact))


@pytest.mark.parametrize(
    ("norm", "smallest", "expected"), [(1, False, "b"), (2, False, "c"), (1, True, "c"), (2, True, "a")]
)
def test_the_member_with_the_wanted_norm_is_stored(norm: int, smallest: bool, expected: str) -> None:
    zero = torch.zeros(30, 40, dtype=torch.float64)
    errors = {"a": zero + 0.1, "b": zero + 1, "c": zero.clone()}
    errors["c"][0, 0] = 100.0  # its L1 norm is less than that of 1,200 ones, its L2 norm more
    residual = MemberResidual(grouping=GROUPING, norm=norm, smallest=smallest)
    for name, error in errors.items():
        residual.register(name, error)
    for name, error in errors.items():
        residual.update(name, error.clone, 0)
    assert torch.equal(residual.tensors()["member.a"], errors[expected])


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.5, 0.75, 1.0])
def test_a_random_part_is_of_the_right_size_and_always_the_same(ratio: float) -> None:
    residual = PartialResidual(grouping=GROUPING, ratio=ratio)
    error = torch.arange(1.0, 1001.0, dtype=torch.float64).view(10, 100)
    for name in ("x", "y"):
        residual.register(name, error)
        residual.update(name, error.clone, 0)
    back = {name: residual.compensate_(torch.zeros_like(error), name) for name in ("x", "y")}
    for value in back.values():
        kept = value != 0
        assert kept.sum() == max(1, int(ratio * 1000)) and torch.equal(value[kept], error[kept])
    assert ratio == 1 or not torch.equal(back["x"], back["y"]), "each tensor has a draw of its own"
    assert torch.equal(residual.compensate_(torch.zeros_like(error), "x"), back["x"])


def test_rows_drawn_by_softmax_have_its_probabilities() -> None:
    norms = torch.tensor([1.0, 2.0, 4.0]).log()
    draws = [int(select([norms], [1], ["x"], "softmax", i)[0]) for i in range(4000)]
    shares = torch.bincount(torch.tensor(draws), minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([1, 2, 4]) / 7, atol=0.03, rtol=0)
    # Scores so far apart that their probabilities underflow: softmax and a multinomial draw would fail or cheat.
    assert select([torch.tensor([0.0, 1e4, 2e4])], [2], ["x"], "softmax", 0)[0].tolist() == [1, 2]


def test_a_residual_draws_for_the_step_that_it_is_told() -> None:
    def stored(earlier: int, number: int) -> torch.Tensor:
        residual = registered(build_residual("w+2d", GROUPING, "int8", options={"choice": "softmax"}))
        for _ in range(earlier):
            residual.end_step(0)
        step(residual, number, list(SHAPES))
        return torch.cat([tensor.view(-1).double() for tensor in residual.tensors().values()])

    assert torch.equal(stored(0, 5), stored(3, 5)), "steps that it has ended do not count"
    assert not torch.equal(stored(0, 5), stored(0, 6))
