"""Properties of residual schemes and of their storage, for gradients of every kind."""

import gc
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from resireduce.compressors.topk import TopK
from resireduce.grouping import Grouping
from resireduce.pieces import generator
from resireduce.planning.memory import LiveBytes
from resireduce.residuals.base import FullResidual, Residual, Residuals
from resireduce.residuals.group import AverageResidual, WeightedResidual
from resireduce.residuals.matrix import RowsColumnsResidual, RowsResidual
from resireduce.residuals.stored import BLOCK, Blocks, Plain, Stored
from resireduce.scheme import RESIDUAL_DTYPES, SCHEMES, build_residual
from tests.tensors import KINDS, make, tensors

DOUBLE = (torch.float64,)
SHAPES = {"a": (6, 7), "b": (6, 7), "c": (6, 7), "big": (9, 11), "other": (5, 3)}
GROUPING = Grouping(groups=(("a", "b", "c"),), specific=("big",))
seeds = st.integers(0, 2**31)
ratios = st.one_of(st.sampled_from([0.01, 0.25, 0.5, 1.0]), st.floats(0.01, 1.0))


def filled(residual: Residual, errors: dict[str, Tensor]) -> Residual:
    """After a step that left these errors."""
    for name, error in errors.items():
        residual.register(name, torch.empty_like(error))
    for name, error in errors.items():
        residual.update(name, error.clone, 0)
    residual.end_step(0)
    return residual


def compensation(residual: Residual, name: str, like: Tensor) -> Tensor:
    """What the next step adds to the gradient of tensor `name`."""
    return residual.compensate_(torch.zeros_like(like), name).clone()


# --- contracts of every scheme ---


def step(residual: Residuals, number: int, order: list[str], kind: str, seed: int) -> None:
    """Step `number`, of top-k, in which the gradients of `order` arrive."""
    for name in order:
        grad = residual.of(name).compensate_(make(kind, SHAPES[name], seed + list(SHAPES).index(name), *DOUBLE), name)
        payload = TopK(0.2).compress(grad, name, 0)
        residual.of(name).update(name, lambda grad=grad, payload=payload: TopK(0.2).error_(grad, payload), number)
    residual.end_step(number)


@pytest.mark.parametrize("dtype", [None, "int8"])
@pytest.mark.parametrize("scheme", SCHEMES)
@given(
    orders=st.lists(st.permutations(list(SHAPES)), min_size=3, max_size=3),
    absent=st.sets(st.sampled_from(list(SHAPES)), max_size=3),
    kind=st.sampled_from(KINDS),
    seed=seeds,
)
def test_the_order_of_arrival_does_not_matter(
    scheme: str, dtype: str | None, orders: list[list[str]], absent: set[str], kind: str, seed: int
) -> None:
    first, second = (build_residual(scheme, GROUPING, dtype) for _ in range(2))
    for name, shape in SHAPES.items():
        first.of(name).register(name, torch.empty(shape, dtype=torch.float64))
        second.of(name).register(name, torch.empty(shape, dtype=torch.float64))
    for number, order in enumerate(orders):
        missing = absent if number else set()
        step(first, number, [name for name in SHAPES if name not in missing], kind, seed + number)
        step(second, number, [name for name in order if name not in missing], kind, seed + number)
    held = second.tensors()
    assert held.keys() == first.tensors().keys()
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, held[name]) and tensor.double().isfinite().all()


@pytest.mark.parametrize("dtype", [None, *RESIDUAL_DTYPES])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nbytes_is_that_of_all_tensors_that_outlive_a_step(scheme: str, dtype: str | None) -> None:
    with LiveBytes(lambda tensor: True) as alive:
        residual = build_residual(scheme, GROUPING, dtype)
        for name, shape in SHAPES.items():
            residual.of(name).register(name, torch.empty(shape, dtype=torch.float64))
        before = residual.nbytes()
        for number in range(2):
            step(residual, number, list(SHAPES), "normal", number)
        gc.collect()
        assert residual.nbytes() == before == alive.current_bytes


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 8), (torch.bfloat16, 10)])
def test_a_group_holds_one_tensor_beside_an_error(dtype: torch.dtype, most: int) -> None:
    """Bytes an element, of a sum in float32 and, of 16 bits, of the error and its copy: nothing else has waited."""
    n = 10_000
    with LiveBytes(lambda tensor: True) as alive:
        residual = AverageResidual(grouping=Grouping(groups=(("a", "b", "c"),)))
        for name in "abc":
            residual.register(name, torch.empty(n, dtype=dtype))
        before = alive.current_bytes
        for name in "cba":
            residual.update(name, lambda: torch.ones(n, dtype=dtype), 0)
        assert alive.peak_bytes - before <= most * n + 1000


groups = st.integers(2, 5).flatmap(
    lambda n: st.tuples(st.lists(st.tuples(st.sampled_from(KINDS), seeds), min_size=n, max_size=n))
)


def members(drawn: tuple[list[tuple[str, int]]], shape: tuple[int, int] = (4, 5)) -> dict[str, Tensor]:
    return {f"m{i}": make(kind, shape, seed, *DOUBLE) for i, (kind, seed) in enumerate(drawn[0])}


def grouping(errors: dict[str, Tensor]) -> Grouping:
    return Grouping(groups=(tuple(errors),))


@given(drawn=groups)
def test_an_average_conserves_mass(drawn: tuple[list[tuple[str, int]]]) -> None:
    errors = members(drawn)
    residual = filled(AverageResidual(grouping=grouping(errors)), errors)
    added = sum(compensation(residual, name, error) for name, error in errors.items())
    scale = max(float(error.abs().max()) for error in errors.values())
    torch.testing.assert_close(added, sum(errors.values()), rtol=0, atol=1e-14 * scale)


@given(base=tensors(DOUBLE), seed=seeds, phi=st.floats(0, 1), count=st.integers(2, 5))
def test_equal_weights_make_the_weighted_average_the_plain_one(base: Tensor, seed: int, phi: float, count: int) -> None:
    source = torch.Generator().manual_seed(seed)
    signs = [torch.randint(2, base.shape, generator=source) * 2.0 - 1 for _ in range(count)]
    errors = {f"m{i}": base * sign for i, sign in enumerate(signs)}
    plain = filled(AverageResidual(grouping=grouping(errors)), errors)
    weighted = filled(WeightedResidual(grouping=grouping(errors), phi=phi), errors)
    found, wanted = (compensation(residual, "m0", base) for residual in (weighted, plain))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13 * float(base.abs().max()))


# --- the schemes of specific layers ---

SPECIFIC = Grouping(specific=("w",))


@given(error=tensors(DOUBLE), row_ratio=ratios, column_ratio=ratios)
def test_2d_stores_a_block_of_the_stated_size_and_adds_nothing_beside_it(
    error: Tensor, row_ratio: float, column_ratio: float
) -> None:
    residual = RowsColumnsResidual(grouping=SPECIFIC, row_ratio=row_ratio, column_ratio=column_ratio)
    held = filled(residual, {"w": error}).tensors()
    sizes = [
        max(1, math.floor(ratio * size)) for ratio, size in zip((row_ratio, column_ratio), error.shape, strict=True)
    ]
    rows, columns = held["rows_columns.w.rows"].long(), held["rows_columns.w.columns"].long()
    assert [len(rows.unique()), len(columns.unique())] == sizes == list(held["rows_columns.w"].shape)
    inside = torch.zeros(error.shape, dtype=torch.bool)
    inside[rows[:, None], columns] = True
    assert torch.equal(compensation(residual, "w", error), torch.where(inside, error, 0))
    for kept, norms in ((rows, error.abs().sum(1)), (columns, error.abs().sum(0))):
        left = torch.ones(len(norms), dtype=torch.bool).index_fill_(0, kept, False)
        assert not left.any() or norms[kept].min() >= norms[left].max()


@given(error=tensors(DOUBLE), ratio=ratios)
def test_2d_of_all_columns_is_d_and_of_everything_is_error_feedback(error: Tensor, ratio: float) -> None:
    block = filled(RowsColumnsResidual(grouping=SPECIFIC, row_ratio=ratio, column_ratio=1.0), {"w": error})
    rows = filled(RowsResidual(grouping=SPECIFIC, row_ratio=ratio), {"w": error})
    assert torch.equal(compensation(block, "w", error), compensation(rows, "w", error))
    for residual in (
        RowsColumnsResidual(grouping=SPECIFIC, row_ratio=1, column_ratio=1),
        RowsResidual(grouping=SPECIFIC, row_ratio=1),
    ):
        full = filled(FullResidual(grouping=Grouping()), {"w": error})
        assert torch.equal(compensation(filled(residual, {"w": error}), "w", error), compensation(full, "w", error))


# --- storage ---

STORAGE = [name for name in RESIDUAL_DTYPES if name != "float64"]


def store(kind: str, value: Tensor) -> Stored:
    shape, device = tuple(value.shape), value.device
    stored = Blocks(shape, kind, device) if kind in Blocks.LARGEST else Plain(shape, getattr(torch, kind), device)
    stored.set_(value.clone(), generator(device, "x"))
    return stored


def stated_error(kind: str, value: Tensor) -> Tensor:
    """Half a unit in the last place; of integers a step of their block, since they are rounded at random."""
    magnitudes = value.abs()
    if kind not in Blocks.LARGEST:
        info = torch.finfo(getattr(torch, kind))
        return (magnitudes * info.eps / 2).clamp(min=info.tiny * info.eps / 2)
    blocks = [block.max().expand_as(block) for block in magnitudes.view(-1).split(BLOCK)]
    scales = torch.cat(blocks).view(value.shape) / Blocks.LARGEST[kind]
    if kind == "float8_e4m3":  # three bits of mantissa; below 2^-6 steps of 2^-9, in units of the scale
        return torch.maximum(magnitudes / 16, scales * 2**-10)
    return scales


@pytest.mark.parametrize("kind", STORAGE)
@given(value=tensors(rows=20, columns=40))
def test_what_comes_back_is_what_was_stored_within_the_stated_error(kind: str, value: Tensor) -> None:
    stored = store(kind, value)
    back = stored.read(torch.float32)
    assert ((back - value).abs() <= stated_error(kind, value) * (1 + 1e-5)).all()
    assert not back[value == 0].any(), "zeros are exact"
    assert torch.equal(stored.add_to_(torch.ones_like(value)), 1 + back)


@pytest.mark.parametrize("kind", Blocks.LARGEST)
@given(value=tensors(rows=20, columns=40), scale=st.sampled_from([1e-24, 1e-9, 1e9, 1e30]))
def test_blocks_store_any_scale_as_well_as_another(kind: str, value: Tensor, scale: float) -> None:
    scaled = value * scale
    back = store(kind, scaled).read(torch.float32)
    assert back.isfinite().all()
    assert ((back - scaled).abs() <= stated_error(kind, scaled) * (1 + 1e-5)).all()
