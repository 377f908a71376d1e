"""What is largest is selected and packed by one call: the elements, bits and memory of one step after the other."""

import math
import os
from collections.abc import Iterator

import pytest
import torch

from resireduce.compressors.base import Sum
from resireduce.compressors.topk import TopK
from resireduce.kernels import native
from resireduce.kernels.native import SWITCH, library
from resireduce.kernels.packed_largest import packed_largest
from resireduce.kernels.selection import piece_of, room_for, sample_of
from resireduce.kernels.submatrix import Crossing
from resireduce.planning.memory import LiveBytes
from resireduce.residuals.stored import Blocks
from tests.compiled import needs_compiler, values

pytestmark = needs_compiler
KINDS = ["normal", "ties", "uneven", "zero", "negative zero", "denormal", "huge"]


@pytest.fixture(autouse=True, params=["", "-DRESIREDUCE_NARROW"])
def _one_thread(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one thread; compile for this processor, and as for one that has no numbers sixteen at a time."""
    monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} {request.param}")
    library.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    library.cache_clear()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the bits are the same: zeros have two signs."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [10_240, 70_001])
@pytest.mark.parametrize("adds", [False, True])
def test_they_are_the_last_of_a_stable_sort(n: int, kind: str, adds: bool) -> None:
    flat, added = values(n, kind), values(n, kind).flip(0) if adds else None
    total = flat if added is None else flat + added
    order = total.abs().double().sort(stable=True).indices
    for k in (1, n // 1000, n // 100, n // 10):
        places = order[-k:].sort().values
        for takes in (False, True):
            target = flat.clone()
            packed = packed_largest(target, k, added, takes)
            assert packed is not None
            assert torch.equal(packed[4 * k :].view(torch.int32), places.int())
            assert same(packed[: 4 * k], total[places])
            assert same(target, total.index_fill(0, places, 0.0) if takes else total)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("n", [10_241, 70_001, 300_000])
def test_numbers_in_few_bits_are_added_on_the_way(monkeypatch: pytest.MonkeyPatch, n: int, precision: str) -> None:
    monkeypatch.setattr(native, "SMALLEST", 1)
    blocks = Blocks((n,), precision, torch.device("cpu"))
    blocks.set_(values(n, "normal").flip(0), torch.Generator().manual_seed(1))
    for kind in KINDS:
        total = blocks.add_to_(values(n, kind))
        places = total.abs().double().sort(stable=True).indices[-(n // 100) :].sort().values
        for count in (1, 3):
            torch.set_num_threads(count)
            target = values(n, kind)
            packed = packed_largest(target, n // 100, blocks)
            assert packed is not None and same(target, total)
            assert torch.equal(packed[4 * (n // 100) :].view(torch.int32), places.int())


@pytest.mark.parametrize("height", [30, 100, 1500, 3000])
@pytest.mark.parametrize("n_columns", [1, 7, None])
def test_a_sub_matrix_is_added_on_the_way(monkeypatch: pytest.MonkeyPatch, height: int, n_columns: int | None) -> None:
    monkeypatch.setattr(native, "SMALLEST", 1)
    width = 90_000 // height
    draw = torch.Generator().manual_seed(height)
    rows = torch.randperm(height, generator=draw)[: -(-height // 2)].sort().values.int()
    columns = torch.randperm(width, generator=draw)[: min(width, n_columns or -(-width // 2))].sort().values.int()
    block = torch.randn(len(rows), len(columns), generator=draw)
    for kind in KINDS:
        whole = torch.zeros(height, width)
        whole[rows.long()[:, None], columns.long()] = block
        total = values(90_000, kind).view(height, width)
        total[rows.long()] += whole[rows.long()]  # a negative zero of another row stays one
        places = total.view(-1).abs().double().sort(stable=True).indices[-2000:].sort().values
        for count in (1, 3):
            torch.set_num_threads(count)
            target = values(90_000, kind)
            packed = packed_largest(target, 2000, Crossing(block, rows, columns, height))
            assert packed is not None and same(target, total.view(-1))
            assert torch.equal(packed[8000:].view(torch.int32), places.int())


@pytest.mark.parametrize("height", [1, 10, 1000, 9000])
def test_a_sub_matrix_takes_no_memory_beside_what_is_sent(height: int) -> None:
    width, all_rows = 90_000 // height, torch.arange(height).int()
    crossing = Crossing(torch.ones(height, 1), all_rows, torch.tensor([0]).int(), height)
    for k in (90, 900, 9000):
        flat = values(90_000, "normal")
        with LiveBytes(lambda tensor: True) as alone:
            packed_largest(flat, k)
        with LiveBytes(lambda tensor: True) as alive:
            packed = packed_largest(flat, k, crossing)
        assert (packed is None) == (8 * k < 4 * (height + width))
        assert alive.peak_bytes <= alone.peak_bytes


@pytest.mark.parametrize("rows", [[0, 100], [-1, 2], [5, 4], [3, 3]])
@pytest.mark.parametrize("swapped", [False, True])
def test_rows_and_columns_that_there_are_not_are_left_alone(rows: list[int], swapped: bool) -> None:
    flat, chosen, all_of_them = torch.zeros(10_000), torch.tensor(rows).int(), torch.arange(100).int()
    crossed = (all_of_them, chosen) if swapped else (chosen, all_of_them)
    block = torch.ones(len(crossed[0]), len(crossed[1]))
    assert packed_largest(flat, 10, Crossing(block, *crossed, 100)) is None
    assert not flat.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_sub_matrix_of_another_precision_is_left_to_others(dtype: torch.dtype) -> None:
    flat, chosen = torch.zeros(10_000), torch.arange(100).int()
    assert packed_largest(flat, 10, Crossing(torch.ones(100, 100, dtype=dtype), chosen, chosen, 100)) is None
    assert not flat.any()


def test_where_the_sample_misleads_another_look_is_taken() -> None:
    flat = torch.zeros(100_000)
    step, _ = sample_of(100_000, 1000, room_for(100_000, 1000, piece_of(100_000)))
    flat[1::step] = values(len(flat[1::step]), "normal")  # what the sample skips: it finds zeros alone: all reach that
    places = flat.abs().sort(stable=True).indices[-1000:].sort().values
    expected, left = flat[places], flat.index_fill(0, places, 0.0)
    packed = packed_largest(flat, 1000, takes=True)
    assert packed is not None and same(packed[:4000], expected) and same(flat, left)


@pytest.mark.parametrize(
    ("flat", "k"),
    [
        (torch.zeros(10_000, dtype=torch.float64), 10),
        (torch.zeros(10_000, dtype=torch.bfloat16), 10),
        (torch.zeros(10_000, device="meta"), 10),
        (torch.zeros(20_000)[::2], 10),
        (torch.zeros(10_000), 10_000),
        (torch.zeros(10_000), 9_000),
        (torch.zeros(20), 2),
    ],
)
def test_nothing_is_done_to_what_it_is_not_for(flat: torch.Tensor, k: int) -> None:
    assert packed_largest(flat, k, torch.ones_like(flat), takes=True) is None
    assert flat.is_meta or not flat.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [70_001, 300_000])
def test_any_number_of_threads_selects_the_same(monkeypatch: pytest.MonkeyPatch, n: int, kind: str) -> None:
    monkeypatch.setattr(native, "SMALLEST", 1)
    for k in (n // 1000, n // 20):
        found = []
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            target = values(n, kind)
            packed = packed_largest(target, k, values(n, kind).flip(0), takes=True)
            assert packed is not None
            found.append((packed, target))
        assert all(same(one[0], found[0][0]) and same(one[1], found[0][1]) for one in found)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("n", [999, 10_240, 70_001])
def test_a_payload_is_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch, n: int, half: bool) -> None:
    def made(switch: str) -> list[torch.Tensor]:
        monkeypatch.setenv(SWITCH, switch)
        library.cache_clear()
        compressor, dense = TopK(0.01, half=half), values(n, "normal")
        whole = compressor.compress(dense, "w", 0)
        left = compressor.error_(dense.clone(), whole)
        _, (of_sum,), _ = compressor.take_from_sums_([Sum(dense, values(n, "ties"))])
        return [whole.buffer, *whole.parts(), left, of_sum.buffer, *of_sum.parts(), dense]

    for one, other in zip(made("1"), made("0"), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("n", [10_240, 262_144, 1_000_000])
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_what_it_holds_is_what_a_plan_counts_and_what_plain_torch_holds(
    monkeypatch: pytest.MonkeyPatch, n: int, density: float
) -> None:
    def held(device: str) -> int:
        dense, added = (torch.zeros(n, device=device) for _ in range(2))
        with LiveBytes(lambda tensor: True) as live:
            TopK(density).take_from_sums_([Sum(dense, added)])
        return live.peak_bytes

    compiled = held("cpu")
    assert compiled == held("meta")
    monkeypatch.setenv(SWITCH, "0")
    library.cache_clear()
    assert held("cpu") == held("meta") == compiled


@pytest.mark.parametrize("shape", [(160, 160, 3, 3), (64, 64, 3, 3), (96, 32, 5, 5), (64, 48, 7, 7), (17, 600, 9)])
def test_one_place_of_all_kernels_does_not_mislead_the_sample(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """Where each 63rd element was in the sample, all of 3 x 3 kernels lay in the same place of a kernel."""
    monkeypatch.setattr("resireduce.kernels.packed_largest._scanned", None)  # not a second time
    places = math.prod(shape[2:])
    for place in range(places):
        flat = values(math.prod(shape), "normal")
        flat[place::places] *= 10
        for density in (0.1, 0.01, 0.001):
            assert packed_largest(flat, int(density * len(flat))) is not None


@pytest.mark.parametrize("n", [12_544, 57_600, 230_400, 589_824, 2_359_296, 38_597_376, 2**25, 510_510 * 12])
def test_a_sample_meets_all_rows_and_columns(n: int) -> None:
    for k in (max(1, n // 1000), n // 100, n // 10):
        assert math.gcd(sample_of(n, k, room_for(n, k, piece_of(n)))[0], n) == 1


def test_it_takes_memory_of_the_host_whatever_the_default_device() -> None:
    """Compiled code that is given the address of another device's memory ends the process."""
    tensor = values(20000, "normal")
    plain = packed_largest(tensor.clone(), 400)
    with torch.device("meta"):
        packed = packed_largest(tensor.clone(), 400)
    assert plain is not None
    assert packed is not None
    assert torch.equal(packed, plain)
