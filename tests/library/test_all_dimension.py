"""Selections by rows and by chunks: AD-Topk, interleaved with top-k, and chunked top-k with values of two bits."""

import numpy as np
import pytest
import torch
from torch import Tensor

from resireduce.compressors.adtopk import ADTopK, ADTopKInterleaved
from resireduce.compressors.chunked import Chunked
from resireduce.compressors.topk import TopK
from resireduce.pieces import share
from tests.tensors import gradient

SHAPES = [(7, 40), (5, 300, 3, 3), (4, 1), (1, 70), (3, 40_000), (60,), ()]


def by_rows(grad: Tensor, density: float) -> np.ndarray:
    """The definition: for every index of the other dimensions the largest of dimension 1, one row after the other."""
    dense = grad.numpy() if grad.dim() > 1 else grad.numpy().reshape(1, -1)
    sent = np.zeros_like(dense)
    rows, sent_rows = np.moveaxis(dense, 1, -1), np.moveaxis(sent, 1, -1)
    k = max(1, int(density * dense.shape[1] + 1e-9))
    for index in np.ndindex(rows.shape[:-1]):
        largest = np.argsort(-np.abs(rows[index]))[:k]
        sent_rows[index][largest] = rows[index][largest]
    return sent.reshape(tuple(grad.shape))


@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_row_sends_its_own_largest(shape: tuple[int, ...], density: float) -> None:
    grad, compressor = gradient(*shape), ADTopK(density)
    payload = compressor.compress(grad, "w", 0)
    sent = compressor.decompress(payload)
    np.testing.assert_array_equal(sent.numpy(), by_rows(grad, density))
    rows = sent.movedim(1, -1) if grad.dim() > 1 else sent.view(1, -1)
    assert rows.any(-1).all(), "every row contributes"
    assert torch.equal(compressor.sent_indices(payload).sort().values, sent.view(-1).nonzero().view(-1))


def test_all_dimension_and_global_selection_take_turns() -> None:
    grad, turns = gradient(30, 50), ADTopKInterleaved(0.1)
    rows, largest = (one.decompress(one.compress(grad, "w", 0)) for one in (ADTopK(0.1), TopK(0.1)))
    assert not torch.equal(rows, largest)
    for step, expected in enumerate((rows, largest, rows, largest)):
        payload = turns.compress(grad, "fc1.weight/0", step)
        assert torch.equal(turns.decompress(payload), expected)
        assert torch.equal(turns.error_(grad.clone(), payload), grad - expected)
        assert torch.equal(turns.sent_indices(payload).sort().values, expected.view(-1).nonzero().view(-1))


def quantised(chunk: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the largest of a chunk, and their values."""
    places = np.argsort(-np.abs(chunk))[:k]
    return places, chunk[places]


@pytest.mark.parametrize("numel", [1, 3, 4095, 4096, 4097, 20_000, 300_001])
def test_chunks_send_their_largest_at_two_levels_of_the_tensor(numel: int) -> None:
    grad, compressor = gradient(numel), Chunked(0.01)
    size = min(numel, 4096)
    chunks = np.pad(grad.numpy(), (0, -numel % size)).reshape(-1, size)
    k = share(0.01, size)
    found = [quantised(chunk, k) for chunk in chunks]
    places = np.concatenate([place + size * i for i, (place, _) in enumerate(found)])
    values = np.concatenate([value for _, value in found])
    magnitudes = np.abs(values).astype(np.float64)
    large = magnitudes > magnitudes.mean()
    levels = np.zeros_like(magnitudes)
    for part in (large, ~large):
        levels[part] = magnitudes[part].mean() if part.any() else 0
    expected = np.zeros(chunks.size)
    expected[places] = levels * np.where(values < 0, -1, 1)
    payload = compressor.compress(grad, "w", 0)
    sent = compressor.decompress(payload)
    if numel > 1:
        np.testing.assert_allclose(sent.numpy(), expected[:numel], rtol=1e-5)
    torch.testing.assert_close(sent + compressor.error_(grad.clone(), payload), grad)
    bits = max(1, (size - 1).bit_length()) + 2
    assert payload.nbytes <= bits * (-(-len(places) // 8)) + 8 + 7
