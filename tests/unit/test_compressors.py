"""Contracts of every registered compressor, and top-k's own."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from resireduce.compressors.topk import TopK
from resireduce.kernels.select import largest_magnitudes
from resireduce.payload import Payload
from resireduce.scheme import COMPRESSORS, build_compressor
from resireduce.share import share

SHAPES = [(1, 1), (3, 5), (101, 100), (16, 8, 3, 3), (1, 70_000)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def gradient(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_sent_plus_kept_is_the_gradient(name: str, density: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    compressor, grad = build_compressor(name, density), gradient(shape, dtype)
    payload = compressor.compress(grad, "w", 0)
    sent = compressor.decompress(payload).clone()
    error = compressor.error_(grad.clone(), payload)
    assert torch.equal(sent + error, gradient(shape, dtype)) and sent.dtype == dtype
    assert torch.equal(grad, gradient(shape, dtype)), "compress must leave its input alone"
    assert not (compressor.lossless and error.any())


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_payload_survives_the_wire(name: str) -> None:
    compressor, grad = build_compressor(name, 0.01), gradient((101, 100))
    payload = compressor.compress(grad, "w", 0)
    gathered = torch.stack([payload.buffer, payload.buffer])
    received = payload.received(gathered[1])
    assert torch.equal(compressor.decompress(received), compressor.decompress(payload))
    scaled = compressor.add_(torch.zeros_like(grad), received, scale=0.5)
    assert torch.equal(2 * scaled, compressor.decompress(payload))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200), st.floats(0.001, 1), st.integers(1, 50))
@settings(deadline=None, max_examples=200)
def test_topk_takes_the_largest_with_any_ties(values: list[float], density: float, piece: int) -> None:
    flat = torch.tensor(values)
    k = share(density, flat.numel())
    indices = largest_magnitudes(flat, k, piece)
    assert indices.tolist() == sorted(set(indices.tolist())) and len(indices) == k
    expected = np.sort(np.abs(np.array(values, dtype=np.float32)))[::-1][:k]
    assert np.array_equal(np.sort(flat[indices].abs().numpy())[::-1], expected)


@pytest.mark.parametrize(
    ("numel", "density", "k"), [(1, 0.01, 1), (99, 0.01, 1), (100, 0.29, 29), (199, 0.01, 1), (200, 0.01, 2), (7, 1, 7)]
)
def test_number_of_elements_sent(numel: int, density: float, k: int) -> None:
    assert share(density, numel) == k


def test_topk_payload_is_eight_bytes_an_element_in_float32() -> None:
    payload = TopK(0.01).compress(gradient((200, 300)), "w", 0)
    assert payload.nbytes == 600 * 8
    values, indices = payload.parts()
    assert values.dtype == torch.float32 and indices.dtype == torch.int32


def test_selecting_is_the_same_in_pieces_of_any_size_on_large_tensors() -> None:
    flat = gradient((1_000_000,))
    expected = flat.abs().topk(10_000).indices.sort().values
    for piece in (None, 10_000, 123_457, 2_000_000):
        assert torch.equal(largest_magnitudes(flat, 10_000, piece), expected)


@given(st.lists(st.sampled_from(["float16", "float32", "int32", "int64", "uint8"]), min_size=1, max_size=4))
@settings(deadline=None)
def test_parts_of_any_dtypes_come_back_as_packed(names: list[str]) -> None:
    parts = [torch.arange(i + 3).to(getattr(torch, name)) for i, name in enumerate(names)]
    back = Payload.pack(*parts, shape=torch.Size((1,))).parts()
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(parts, back, strict=True))
