"""What is largest is selected, packed and taken out by one call, and added to its places by another."""

import math
from dataclasses import replace

import pytest
import torch

from resireduce.compressors.topk import TopK
from resireduce.kernels import ops
from resireduce.kernels.ops import BYTES, SWITCH, add_sent_each_, by_keys, largest_each, library
from tests.compiled import needs_compiler, values

pytestmark = needs_compiler
KINDS = ["normal", "ties", "uneven", "zero", "negative zero", "denormal", "huge"]


@pytest.fixture(autouse=True)
def _one_thread(found_anew: None) -> None:
    torch.set_num_threads(1)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the bits are the same: zeros have two signs."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def packed_of(flat: torch.Tensor, k: int, added: torch.Tensor | None = None, takes: bool = True) -> torch.Tensor:
    packed = torch.empty(BYTES * k, dtype=torch.uint8)
    assert largest_each([(flat, k, added, packed)], takes)
    return packed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 20, 999, 10_240, 70_001])
@pytest.mark.parametrize("adds", [False, True])
def test_they_are_the_last_of_a_stable_sort(n: int, kind: str, adds: bool) -> None:
    flat, added = values(n, kind), values(n, kind).flip(0) if adds else None
    total = flat if added is None else flat + added
    order = total.abs().double().sort(stable=True).indices
    for k in sorted({1, max(1, n // 1000), max(1, n // 100), max(1, n // 10), max(1, 9 * n // 10), n}):
        places = order[-k:].sort().values
        for takes in (False, True):
            target = flat.clone()
            packed = packed_of(target, k, added, takes)
            assert torch.equal(packed[4 * k :].view(torch.int32), places.int())
            assert same(packed[: 4 * k], total[places])
            assert same(target, total.index_fill(0, places, 0.0) if takes else total)


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["normal", "zero", "uneven"])
@pytest.mark.parametrize("n", [20, 10_240, 70_001])
def test_what_is_not_finite_is_larger_than_all_else(n: int, kind: str, bad: float, count: int) -> None:
    """Finite numbers may add up to infinity, of both signs; nothing is written beyond a tensor's end."""
    places = torch.arange(n // 2, n, max(1, n // 2 // count))
    flat, added = values(n, kind), values(n, kind).index_fill(0, places, bad)
    total = flat + added
    for k in (2, n // 10):
        target = flat.clone()
        packed = packed_of(target, k, added)
        chosen = by_keys(total, k)
        assert torch.equal(packed[4 * k :].view(torch.int32), chosen.int())
        assert same(packed[: 4 * k], total[chosen]) and same(target, total.index_fill(0, chosen, 0.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [70_001, 300_000])
def test_any_number_of_threads_selects_the_same(monkeypatch: pytest.MonkeyPatch, n: int, kind: str) -> None:
    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    for k in (n // 1000, n // 20):
        found = []
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            target = values(n, kind)
            found.append((packed_of(target, k, values(n, kind).flip(0)), target))
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
        _, (of_sum,), *_ = TopK(0.01).take_from_sums_([(dense, values(n, "ties"))], [])
        return [whole.buffer, *whole.parts(), left, of_sum.buffer, *of_sum.parts(), dense]

    for one, other in zip(made("1"), made("0"), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_it_takes_memory_of_the_host_whatever_the_default_device() -> None:
    """Compiled code that is given the address of another device's memory ends the process."""
    tensor, packed = values(20000, "normal"), torch.empty(3200, dtype=torch.uint8)
    plain = packed_of(tensor.clone(), 400)
    with torch.device("meta"):
        assert largest_each([(tensor.clone(), 400, None, packed)])
    assert torch.equal(packed, plain)


# --- what was sent is added to its places ---

N = 30_000


@pytest.mark.parametrize("scale", [1.0, 1 / 2, 1 / 3, -1 / 7])
@pytest.mark.parametrize("density", [0.0001, 0.01, 1.0])
def test_sums_have_the_bits_of_torch(monkeypatch: pytest.MonkeyPatch, density: float, scale: float) -> None:
    compressor = TopK(density)
    payload = compressor.compress(values(N, "normal"), "w", 0)
    expected = values(N, "uneven").index_add_(0, compressor.sent_indices(payload), payload.parts()[0], alpha=scale)
    for switch in ("1", "0"):
        monkeypatch.setenv(SWITCH, switch)
        library.cache_clear()
        assert torch.equal(compressor.add_(values(N, "uneven"), payload, scale), expected)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("order", ["ascending", "none", "twice"])
def test_places_in_any_order_have_the_bits_of_torch_in_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, order: str, zero: bool
) -> None:
    """Each of two ranks has sent elements of a tensor that is larger than what is gone through at once."""
    n, compressor = 200_003, TopK(0.01)
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(1))[: n // 100]
    places = {"ascending": drawn.sort().values, "none": drawn, "twice": drawn // 1000}[order]
    payloads = [compressor.compress(values(n, "normal"), "w", 0), compressor.compress(values(n, "uneven"), "w", 0)]
    payloads[1].parts()[1].copy_(places)
    expected = values(n, "normal").mul_(not zero)
    for one in payloads:
        for value, place in zip(one.parts()[0].mul(1 / 3).tolist(), one.parts()[1].tolist(), strict=True):
            expected[place] += value
    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found = values(n, "normal").mul_(not zero)
        for one in payloads:
            compressor.add_(found, one, 1 / 3)
        assert torch.equal(found, expected)
        found = values(n, "normal")
        is_done = add_sent_each_([(found, payloads)], 1 / 3, zero)
        assert is_done == (order == "ascending") and torch.equal(found, expected if is_done else values(n, "normal"))


@pytest.mark.parametrize("index", [-1, N, 2**31 - 1])
def test_a_message_with_a_place_that_is_not_there_is_refused(index: int) -> None:
    compressor = TopK(0.01)
    payload = compressor.compress(values(N, "normal"), "w", 0)
    spoilt = replace(payload, buffer=payload.buffer.clone())
    spoilt.parts()[1][7] = index
    with pytest.raises((IndexError, RuntimeError)):
        compressor.add_(values(N, "uneven"), spoilt)


def test_a_message_of_other_bytes_an_element_is_left_to_plain_torch() -> None:
    """Nothing is read behind its end; and indices of 64 bits, as of 2^31 elements or more, are not taken for values."""
    payload = TopK(0.01).compress(values(N, "normal"), "w", 0)
    packed = payload.buffer
    for other in (packed[:-8], torch.cat((packed, packed[: len(packed) // 2]))):
        assert not add_sent_each_([(torch.zeros(N), [payload.holding(other)])], 1.0, zero=False)


@pytest.mark.parametrize("options", [{"half": True}, {"coded": True}], ids=str)
@pytest.mark.parametrize("k", [1, 300])
def test_a_message_in_another_form_is_left_to_plain_torch(k: int, options: dict[str, bool]) -> None:
    """One element in half precision takes as many bytes as one in float32, since messages are filled up."""
    payload = TopK(k / N, **options).compress(values(N, "normal"), "w", 0)  # type: ignore[arg-type]
    assert not add_sent_each_([(torch.zeros(N), [payload])], 1.0, zero=True)
