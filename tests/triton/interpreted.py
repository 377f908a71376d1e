"""Kernels in Triton's interpreter, on the CPU: `tests/library/test_triton.py` runs this with TRITON_INTERPRET=1.

Oracles are NumPy's, from the definitions; and the library itself, which must train the same parameters without them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resireduce
from benchmarks.training import kernel_cases
from benchmarks.training.time_kernels import measured
from resireduce import finiteness
from resireduce.errors import NonFiniteGradient
from resireduce.grouping import Grouping
from resireduce.kernels import norms, on_gpu
from resireduce.kernels.gpu import (
    blocks,
    crossing,
    finite,
    launches,
    mean_norm,
    near,
    once,
    quotients,
    selections,
    self_check,
    sent,
    take_out,
    weighted,
)
from resireduce.kernels.gpu import select as select_
from resireduce.kernels.gpu.finite import zero_unless_finite_
from resireduce.kernels.gpu.language import jit, tl
from resireduce.kernels.gpu.select import select, take_largest_
from resireduce.kernels.gpu.sent import add_sent_
from resireduce.kernels.gpu.take_out import take_out_
from resireduce.pieces import generator
from resireduce.residuals.stored import Blocks
from tests.worlds import residuals

CPU = torch.device("cpu")
FLOATS = [torch.float32, torch.float16]
FORMS = ["once", "launches"]


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


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library uses the kernels for tensors of the CPU, of whatever size, as if the host had to wait for them."""
    monkeypatch.setattr(finiteness, "AT_ONCE", ("meta",))
    monkeypatch.setattr(on_gpu, "DEVICE", "cpu")
    monkeypatch.setattr(on_gpu, "works", lambda device, dtype: True)
    yield


# --- selection ---


def selected(flat: Tensor, k: int, form: str, tile: int = 256, tiles: int = 2) -> list[int]:
    """What a form selects, `tile` elements at a time."""
    if form == "once":
        return once.selected(flat, k, tile=tile).tolist()
    return launches.selected(flat, k, tile=tile, tiles=tiles).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", kinds(300, torch.float32))
def test_a_selection_is_the_end_of_a_stable_sort(kind: str, form: str) -> None:
    flat = kinds(1301, torch.float32)[kind]
    assert selected(flat, 131, form) == last_of_a_stable_sort(flat, 131)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["normal", "ties", "denormal"])
def test_a_selection_of_float16(kind: str, form: str) -> None:
    flat = kinds(700, torch.float16)[kind]
    assert selected(flat, 300, form) == last_of_a_stable_sort(flat, 300)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [2, 3, 256, 257])
def test_sizes_at_the_borders_of_tiles(n: int, form: str) -> None:
    flat = drawn(n, torch.float16).mul_(4).round_()
    for k in {1, n - 1}:
        assert selected(flat, k, form) == last_of_a_stable_sort(flat, k)


@pytest.mark.parametrize("form", FORMS)
def test_bits_of_bfloat16_are_in_order_too(form: str) -> None:
    flat = drawn(700, torch.bfloat16)
    assert selected(flat, 60, form) == last_of_a_stable_sort(flat, 60)


@pytest.mark.parametrize("form", FORMS)
def test_neither_tiles_nor_calls_change_what_is_chosen(form: str) -> None:
    flat = drawn(1500).mul_(3).round_()
    assert selected(flat, 500, form, 512, 1) == selected(flat, 500, form, 4096, 2)


@pytest.mark.parametrize("form", FORMS)
def test_the_border_is_the_k_th_largest(form: str) -> None:
    flat = drawn(900).mul_(3).round_()
    order = sorted(flat.abs().tolist())
    for k in (1, 77, 899):
        found = (once if form == "once" else launches).find_border(flat, k)
        assert found[:1].view(torch.float32).item() == order[-k]
        assert found[1] == sum(one >= order[-k] for one in order) - k


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("kind", ["normal", "ties", "denormal", "zeros of both signs"])
def test_a_sum_is_formed_by_the_way(
    kind: str, allowed: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(on_gpu.SWITCH, "1" if allowed else on_gpu.IN_LAUNCHES)
    flat, added = kinds(1301, dtype)[kind], kinds(1301, dtype)[kind].flip(0)
    expected = flat + added
    assert select(flat, 100, added).tolist() == last_of_a_stable_sort(expected, 100)
    assert self_check.same_bits(flat, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("switch", ["1", on_gpu.IN_LAUNCHES])
def test_the_largest_are_taken_out(switch: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(on_gpu.SWITCH, switch)
    for narrow in (1 << 22, 1000):
        monkeypatch.setattr(near, "NARROW", narrow)
        monkeypatch.setattr(near, "SAMPLES", 256)
        for added in (None, drawn(3001, dtype, seed=1)):
            flat = drawn(3001, dtype)
            left = flat if added is None else flat + added
            into = torch.empty(60, dtype=dtype), torch.empty(60, dtype=torch.int32)
            expected = last_of_a_stable_sort(left, 60)
            values = left[expected]
            take_largest_(flat, 60, into, added)
            assert into[1].tolist() == expected and self_check.same_bits(into[0], values)
            assert self_check.same_bits(flat, left.index_fill(0, torch.tensor(expected), 0.0))


@pytest.fixture
def narrowed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Samples are taken of small tensors; returned is, for each, how many were near, and for how many was room."""
    found: list[tuple[int, int]] = []

    def find(*given: Any) -> near.Near:
        made = near.find_near(*given)
        found.append((int(made.total), made.keys.numel()))
        return made

    monkeypatch.setattr(near, "NARROW", 1000)
    monkeypatch.setattr(near, "SAMPLES", 256)
    monkeypatch.setattr(select_, "find_near", find)
    return found


@pytest.mark.parametrize("kind", ["normal", "constant", "all mass in one place"])
def test_a_large_sum_is_formed_by_the_way(kind: str, narrowed: list[tuple[int, int]]) -> None:
    flat, added = kinds(4097, torch.float32)[kind], drawn(4097, seed=1)
    expected = flat + added
    assert select(flat, 60, added).tolist() == last_of_a_stable_sort(expected, 60)
    assert self_check.same_bits(flat, expected) and len(narrowed) == 1


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("kind", kinds(300, torch.float32))
def test_a_selection_of_those_near_is_that_of_all(
    kind: str, allowed: bool, narrowed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(on_gpu.SWITCH, "1" if allowed else on_gpu.IN_LAUNCHES)
    flat = kinds(4097, torch.float32)[kind]
    assert select(flat, 60).tolist() == last_of_a_stable_sort(flat, 60)
    ((count, room),) = narrowed
    enough = 60 <= count <= room
    assert enough == (kind in ("normal", "denormal")), "the others show what is done if the sample misled"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 33, 60])
def test_a_selection_of_those_near_in_half_precision(
    dtype: torch.dtype, k: int, narrowed: list[tuple[int, int]]
) -> None:
    flat = drawn(3000, dtype)
    assert select(flat, k).tolist() == last_of_a_stable_sort(flat, k)
    assert all(k <= count <= room for count, room in narrowed) and narrowed


@pytest.mark.usefixtures("narrowed")
@pytest.mark.parametrize("left", [0, 1])
def test_those_near_are_all_that_are_chosen_or_just_too_few(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides is how many reach the border: exactly k, k - 1, exactly as many as there is room for, one more."""
    flat = torch.zeros(2000)
    flat[::20] = torch.arange(1.0, 101.0)
    expected = last_of_a_stable_sort(flat, 50)
    found = iter([51.0 + left, 50.0 - left])
    monkeypatch.setattr(once, "find_border", lambda values, k: torch.tensor([next(found)]).view(torch.int32))
    monkeypatch.setattr(select_, "sample_of", lambda n, k: (9, 5, 50 + left))
    for _ in range(2):
        assert select(flat, 50).tolist() == expected


# --- one pass each ---


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 256, 700])
def test_a_gradient_that_is_not_finite_becomes_zeros(place: int, dtype: torch.dtype) -> None:
    largest = torch.full((701,), torch.finfo(dtype).max, dtype=dtype)
    largest[5] = -0.0
    for bad in (torch.nan, torch.inf, -torch.inf):
        gradient = largest.clone()
        assert zero_unless_finite_(gradient, tile=256).item() == 1, "the largest number is finite"
        assert gradient.tolist() == largest.tolist() and gradient[5].signbit()
        gradient[place] = bad
        assert zero_unless_finite_(gradient, tile=256).item() == 0
        assert gradient.tolist() == [0.0] * 701


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [0, 1, 300])
def test_what_is_taken_out_leaves_zeros(count: int, dtype: torch.dtype) -> None:
    flat = drawn(1000, dtype)
    before, indices = flat.numpy().copy(), torch.randperm(1000, generator=torch.Generator().manual_seed(1))[:count]
    values = take_out_(flat, indices, tile=256)
    assert values.tolist() == before[indices.numpy()].tolist()
    before[indices.numpy()] = 0
    assert flat.tolist() == before.tolist()


@pytest.mark.parametrize("count", [1, 300])
def test_what_has_come_is_added_to_its_places(count: int) -> None:
    values, places = drawn(count), torch.randperm(1000, generator=torch.Generator().manual_seed(1))[:count]
    packed = torch.cat((values.view(torch.uint8), places.to(torch.int32).view(torch.uint8)))
    sums = np.ones(1000, np.float32)
    sums[places.numpy()] += values.numpy() * np.float32(1 / 3)
    added = torch.ones(1000)
    add_sent_(added, packed, count, 1 / 3, tile=256)
    assert added.tolist() == sums.tolist()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(7, 300), (300, 7), (1, 9)])
def test_where_rows_cross_columns(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = drawn(shape[0] * shape[1], dtype).view(shape)
    before = matrix.double().numpy().copy()
    rows, columns = (np.arange(size % 2, size, 2) for size in shape)
    numbers = [torch.from_numpy(places).to(torch.int32) for places in (rows, columns)]
    values = torch.empty(len(rows), len(columns), dtype=dtype)
    crossing.cut_crossing_into(values, matrix, *numbers, tile=64)
    assert values.tolist() == before[np.ix_(rows, columns)].tolist()
    crossing.add_crossing_(matrix, *numbers, values, tile=64)
    before[np.ix_(rows, columns)] *= 2  # exact
    assert matrix.tolist() == before.tolist()


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_codes_have_the_bits_of_the_plain_form(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for numel in (1, 65, 20_001):  # of two pieces, with a draw each
        for name, values in kinds(max(numel, 300), dtype).items():
            flat, made = values[:numel], []
            if name == "infinite" or (numel > 1000 and name not in ("normal", "denormal")):
                continue
            for switch in ("1", "0"):
                monkeypatch.setenv(on_gpu.SWITCH, switch)
                stored = Blocks((numel,), kind, CPU)
                stored.set_(flat, generator(CPU, "source"))
                made.append([*stored.tensors().values(), stored.add_to_(flat.clone())])
            for one, other in zip(*made, strict=True):
                assert np.array_equal(one.numpy().view(np.uint8), other.numpy().view(np.uint8)), (name, numel)


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("is_one", "is_last"), [(True, True), (True, False), (False, True), (False, False)])
def test_weighted_sums_have_the_bits_of_the_plain_form(
    is_one: bool, is_last: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, more in kinds(2501, dtype).items():
        if name == "infinite":
            continue
        made, phi = [], 0.3 if dtype == torch.float32 else torch.tensor(0.3, dtype=dtype)
        for switch in ("1", "0"):
            monkeypatch.setenv(on_gpu.SWITCH, switch)
            found = norms.WeightedSum(drawn(2501, dtype, 1), torch.tensor(0.7, dtype=dtype), is_one)
            found.add(more.clone(), phi, torch.empty(2501, dtype=dtype) if is_last else None)
            made.append((found.total, found.weight))
        assert self_check.same_bits(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1]), name


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 256, 701])
def test_a_mean_of_norms_is_that_of_float64(n: int, dtype: torch.dtype) -> None:
    for name, values in kinds(max(n, 300), dtype).items():
        flat, numbers = values[:n], values[:n].double().numpy()
        for phi in (0.0, 0.3, 1.0):
            expected = phi * np.abs(numbers).mean() + (1 - phi) * np.sqrt((numbers**2).mean())
            found = mean_norm.mean_norm(flat, phi, tile=256)
            assert found.dtype == torch.float32 and found.shape == ()
            if name != "infinite":
                assert abs(found.item() - expected) <= 3e-7 * expected + 2e-45, (name, phi)


@np.errstate(all="ignore")
def test_quotients_are_those_of_numpy() -> None:
    """Quotients are float32's for numbers of all sizes, and where one is denormal and halfway between two numbers."""
    drawn_ = np.random.default_rng(0)
    x, divisors = (drawn_.integers(1, 0x7F800000, 4000).astype(np.int32).view(np.float32) for _ in range(2))
    middle = (2 * drawn_.integers(0, 500, 4000) + 1) * 2.0**-150
    wide = drawn_.integers(1, 1 << 12, 4000) * 2.0 ** drawn_.integers(1, 100, 4000)
    x, divisors = np.append(x, (middle * wide).astype(np.float32)), np.append(divisors, wide.astype(np.float32))
    expected = torch.from_numpy(x / divisors)
    into = torch.empty(8000)
    _divide[(1,)](into, torch.from_numpy(x), torch.from_numpy(divisors), 8000, 8192)
    assert self_check.same_bits(into, expected)


@jit
def _divide(into, x, divisors, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, TILE)
    inverted = quotients.inverse(tl.load(divisors + at, mask=at < n, other=1.0))
    tl.store(into + at, quotients.times(tl.load(x + at, mask=at < n, other=0.0), inverted), mask=at < n)


# --- the library with them ---

GROUPED = Grouping(groups=(("0.weight", "1.weight"),))
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "rows and columns": {"scheme": "2d", "groups": Grouping(groups=(), specific=("0.weight", "1.weight"))},
    "weighted": {"scheme": "w", "groups": GROUPED, "gradients": "kept"},
    "int4": {"residual_dtype": "int4"},
    "in the host's memory": {"residual_dtype": "int8", "residual_device": "cpu"},
}
TOP_K = {"_chosen", "zero_unless_finite_", "add_sent_"}
CODED = TOP_K | {"encode", "decode_add_"}
USED = {
    "float32": TOP_K,
    "rows and columns": TOP_K | {"add_crossing_", "cut_crossing_into"},
    "weighted": TOP_K | {"mean_norm", "add_weighted"},
    "int4": CODED,
    "in the host's memory": CODED,
}
"""What of the library's kernels takes part."""


def small(**options: Any) -> tuple[nn.Sequential, resireduce.DistributedOptimizer]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, resireduce.distribute(
        model, optimizer, backend="local", **{"scheme": "baseline", "density": 0.05, **options}
    )


def train(model: nn.Module, optimizer: resireduce.DistributedOptimizer, inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()


def parameters_after(steps: int, **options: Any) -> list[Tensor]:
    model, optimizer = small(**options)
    for number in range(steps):
        train(model, optimizer, drawn(500, seed=number).view(5, 100))
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("case", OPTIONS)
def test_the_same_parameters_are_trained(case: str, request: pytest.FixtureRequest) -> None:
    plain = parameters_after(2, **OPTIONS[case])
    request.getfixturevalue("used")
    calls = counted(request.getfixturevalue("monkeypatch"))
    assert all(map(torch.equal, plain, parameters_after(2, **OPTIONS[case])))
    assert calls == USED[case]


def counted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of those functions of the kernels that the library calls from now on."""
    calls: set[str] = set()
    functions = ((blocks, "encode"), (blocks, "decode_add_"), (finite, "zero_unless_finite_"), (select_, "_chosen"))
    functions += ((crossing, "add_crossing_"), (crossing, "cut_crossing_into"))
    functions += ((mean_norm, "mean_norm"), (weighted, "add_weighted"))
    of_messages = ((take_out, "take_out_"), (sent, "add_sent_"))
    for module, name in (*functions, *of_messages):
        right = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=right, n=name, **k: calls.add(n) or f(*a, **k))
    return calls


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("case", ["float32", "int4"])
def test_a_gradient_that_is_not_finite_does_what_it_does_without_them(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, inputs = [], drawn(500).view(5, 100)
    for switch in ("1", "0"):
        monkeypatch.setenv(on_gpu.SWITCH, switch)
        model, optimizer = small(**OPTIONS[case])
        train(model, optimizer, inputs)
        with pytest.raises(NonFiniteGradient, match="holds NaN or infinity; nothing of it was sent"):
            train(model, optimizer, inputs * torch.inf)
        left.append([*(one.detach() for one in model.parameters()), *residuals(optimizer).values()])
    assert all(map(torch.equal, *left)) and all(one.isfinite().all() for one in left[0])


# --- where they are used ---


def test_a_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(on_gpu.SWITCH, "1")  # what it sets is undone
    found = measured("cpu", tiny=True)
    assert found["triton"] and len(found["rows"]) == 10
    for row in found["rows"]:
        assert row["same"] and row["kernel_seconds"] > 0 < row["plain_seconds"], row


def test_a_kernel_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(blocks, "encode", failing)
    monkeypatch.setattr(finite, "zero_unless_finite_", lambda grad, answers: torch.tensor(False))
    found = {row["kernel"]: row for row in kernel_cases.timed(drawn(400), 1)}
    assert found["int8: encode"]["reason"] == "RuntimeError: no C compiler" and not found["int8: encode"]["same"]
    assert found["finite"]["same"] is False and found["take out"]["same"] is True


@pytest.mark.usefixtures("used")
def test_only_what_they_were_made_for_is_given_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = drawn(1000)
    assert on_gpu.in_triton(flat) and on_gpu.in_triton(flat, flat.half())
    for other in (flat.double(), flat[::2], flat.to("meta"), torch.nn.Parameter(flat), flat[:0]):
        assert not on_gpu.in_triton(other)
    assert not on_gpu.in_triton(flat, flat[::2])
    monkeypatch.setenv(on_gpu.SWITCH, "0")
    assert not on_gpu.in_triton(flat)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_check_on_a_device_finds_them_right(dtype: torch.dtype, narrowed: list[tuple[int, int]]) -> None:
    numel = 704 if dtype == torch.float32 else 300  # a multiple of 16, or not: two sizes
    assert self_check.differing(CPU, dtype, numel) == self_check.differing_at_once(CPU, dtype, numel) == []
    sizes = 1 if dtype == torch.float32 else 2
    assert len(narrowed) == 7 * sizes, "of many, for two k, a sum, and what is taken out; in both forms"


PLACES = {
    "select": (launches, "selected"),
    "select of many": (selections, "select"),
    "sum of many": (selections, "select"),
    "select in one launch": (once, "selected"),
    "sum in one launch": (once, "selected"),
    "many in one launch": (selections, "select"),
    "finite": (self_check, "zero_unless_finite_"),
    "take out": (self_check, "take_out_"),
    "add what was sent": (self_check, "add_sent_"),
    "rows and columns": (self_check, "cut_crossing_into"),
    "weighted": (self_check, "add_weighted"),
    "8 bits": (self_check, "encode"),
    "4 bits": (self_check, "decode_add_"),
}


@pytest.mark.usefixtures("narrowed")
@pytest.mark.parametrize("kernel", PLACES)
def test_the_check_on_a_device_finds_a_kernel_that_is_wrong(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = PLACES[kernel]
    right = getattr(module, name)

    def wrong(first: Tensor, *others: Any, **named: Any) -> object:
        """One element of what is written is another."""
        result = right(first, *others, **named)
        selects = "select" in kernel or "launch" in kernel
        changed = result if selects else others[1] if kernel == "8 bits" else first
        changed.view(-1)[0] += 1
        return result

    checks = self_check.CHECKS | self_check.CHECKS_AT_ONCE
    monkeypatch.setattr(module, name, wrong)
    monkeypatch.setattr(self_check, "CHECKS", {kernel: checks[kernel]})
    assert self_check.differing(CPU, torch.float32, 304) == [kernel]


FAILURES = [
    ([], None),
    (["select"], "other results than plain torch: select"),
    (RuntimeError("no C compiler\nx"), "no C compiler."),
]


def outcome_of(monkeypatch: pytest.MonkeyPatch, check: str, outcome: object) -> None:
    """The check on a device has this outcome; its GPUs are new enough."""

    def differing(device: torch.device, dtype: torch.dtype) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(self_check, check, differing)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(once, "LEFT_OUT", set())
    on_gpu.works.cache_clear()


@pytest.mark.parametrize(("outcome", "said"), FAILURES)
def test_a_device_on_which_they_fail_does_without(
    outcome: object, said: str | None, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    outcome_of(monkeypatch, "differing_at_once", [])
    outcome_of(monkeypatch, "differing", outcome)
    assert on_gpu.works(torch.device("cuda", 0), torch.float32) is (said is None)
    assert [said in str(one.message) for one in recwarn] == [True] * (said is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not on_gpu.works(torch.device("cuda", 1), torch.float32) and len(recwarn) == (said is not None)


@pytest.mark.parametrize(("outcome", "said"), FAILURES)
def test_a_device_on_which_one_launch_fails_has_several(
    outcome: object, said: str | None, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    outcome_of(monkeypatch, "differing", [])
    outcome_of(monkeypatch, "differing_at_once", outcome)
    gpu = torch.device("cuda", 0)
    assert on_gpu.works(gpu, torch.float32)
    assert ((gpu, torch.float32) in once.LEFT_OUT) is (said is not None)
    assert [said in str(one.message) and "in one launch" in str(one.message) for one in recwarn] == [True] * bool(said)
    monkeypatch.setattr(once, "LEFT_OUT", {(CPU, torch.float32)})
    assert not once.used(drawn(10), 10) and once.used(drawn(10, torch.float16), 10)
    assert not once.used(drawn(10, torch.float16), once.MOST + 1)


def test_what_is_not_wanted_is_not_tried(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    outcome_of(monkeypatch, "differing", [])
    outcome_of(monkeypatch, "differing_at_once", AssertionError("it could wait for ever"))
    monkeypatch.setenv(on_gpu.SWITCH, on_gpu.IN_LAUNCHES)
    gpu = torch.device("cuda", 0)
    assert on_gpu.works(gpu, torch.float16) and (gpu, torch.float16) in once.LEFT_OUT and len(recwarn) == 0
