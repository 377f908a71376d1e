"""Bits in bytes, indices in Golomb-Rice codes, and the compressors that send them."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resireduce.compressors.dgc import DGC
from resireduce.compressors.packed import HEADER, decode, encode
from resireduce.compressors.thresholds import SIDCo, Threshold
from resireduce.compressors.topk import TopK
from resireduce.kernels.codes import octets, pack_bits, pack_codes, unpack_bits, unpack_codes
from tests.tensors import gradient


@given(bits=st.lists(st.booleans(), min_size=1, max_size=70))
def test_bits_lie_as_numpy_packs_them(bits: list[bool]) -> None:
    packed = pack_bits(torch.tensor(bits))
    assert packed.tolist() == np.packbits(bits, bitorder="little").tolist()
    assert unpack_bits(packed, len(bits)).tolist() == bits


@given(data=st.data(), width=st.integers(1, 20))
def test_codes_of_any_width_come_back_whole_and_in_pieces(data: st.DataObject, width: int) -> None:
    codes = torch.tensor(data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=50)))
    planes = pack_codes(codes, width)
    assert planes.shape == (width, -(-len(codes) // 8)) and torch.equal(unpack_codes(planes, len(codes)), codes)
    for piece in (slice(0, 8), slice(8, len(codes))):
        if piece.stop <= len(codes) and piece.start < piece.stop:
            assert torch.equal(planes[:, octets(piece)], pack_codes(codes[piece], width))


@given(data=st.data(), numel=st.integers(1, 3000))
def test_indices_come_back_and_take_no_more_than_planned(data: st.DataObject, numel: int) -> None:
    chosen = data.draw(st.sets(st.integers(0, numel - 1), max_size=60))
    indices = torch.tensor(sorted(chosen), dtype=torch.int64)
    width, codes = encode(indices, numel)
    assert torch.equal(decode(codes, width, len(chosen)), indices)
    most = encode(indices.to("meta"), numel)[1].numel()
    assert codes.numel() <= most + (width + 8) / 8 + 1, "but for rounding up of each plane"


@pytest.mark.parametrize("density", [0.01, 0.001])
def test_random_indices_take_little_more_than_their_entropy(density: float) -> None:
    n = 1_000_000
    source = torch.Generator().manual_seed(0)
    indices = torch.randperm(n, generator=source)[: int(density * n)].sort().values
    start = time.process_time()
    width, codes = encode(indices, n)
    assert torch.equal(decode(codes, width, len(indices)), indices)
    assert time.process_time() - start < 10
    entropy = -(density * np.log2(density) + (1 - density) * np.log2(1 - density))
    assert n * entropy / 8 * 0.99 < codes.numel() < n * entropy / 8 * 1.05
    grad = torch.zeros(n).index_fill_(0, indices, 1.0)
    payload = TopK(density, coded=True).compress(grad, "w", 0)
    assert payload.nbytes == HEADER + 4 * len(indices) + codes.numel()


@pytest.mark.parametrize("of", [TopK(0.03), TopK(0.03, half=True), DGC(0.03), DGC(0.03, half=True), Threshold(2.0),
                                Threshold(99.0), TopK(1.0)], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_packed_is_what_was_selected(dtype: torch.dtype, of: TopK) -> None:
    grad, packed = gradient(130, 77).to(dtype), replace(of, coded=True)
    plain, payload = of.compress(grad, "w", 3), packed.compress(grad, "w", 3)
    assert torch.equal(packed.decompress(payload), of.decompress(plain))
    assert torch.equal(packed.error_(grad.clone(), payload), of.error_(grad.clone(), plain))
    assert torch.equal(packed.sent_indices(payload), of.sent_indices(plain))
    assert packed.momentum == of.momentum
    shifted = torch.cat((torch.zeros(3, dtype=torch.uint8), payload.buffer))[3:]
    assert torch.equal(packed.decompress(payload.received(shifted)), of.decompress(plain)), "it lies anywhere"


def test_a_state_is_that_of_the_compressor_whose_indices_are_packed() -> None:
    of, grad = SIDCo(0.01), gradient(20_000)
    packed, states = replace(of, coded=True), [of.state(grad.shape, grad) for _ in range(2)]
    assert packed.state(grad.shape, grad).keys() == states[0].keys()
    for step in range(7):
        inner = of.compress_with(grad, "w", step, states[0])
        outer = packed.compress_with(grad, "w", step, states[1])
        assert torch.equal(packed.decompress(outer), of.decompress(inner))
        assert torch.equal(states[0]["stages"], states[1]["stages"])
