"""What was sent is added to its places by one call of compiled code, with the bits of torch's own additions."""

from dataclasses import replace

import pytest
import torch

from resireduce.compressors.topk import TopK
from resireduce.kernels.ops import SWITCH, add_sent_each_, library
from tests.compiled import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("found_anew")]
N = 30_000


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1.0, 1 / 2, 1 / 3, -1 / 7])
@pytest.mark.parametrize("density", [0.0001, 0.01, 1.0])
def test_sums_have_the_bits_of_torch(monkeypatch: pytest.MonkeyPatch, density: float, scale: float) -> None:
    compressor = TopK(density)
    payload = compressor.compress(drawn(0), "w", 0)
    expected = drawn(1).index_add_(0, compressor.sent_indices(payload), payload.parts()[0], alpha=scale)
    for switch in ("1", "0"):
        monkeypatch.setenv(SWITCH, switch)
        library.cache_clear()
        assert torch.equal(compressor.add_(drawn(1), payload, scale), expected)


@pytest.mark.parametrize("index", [-1, N, 2**31 - 1])
def test_a_message_with_a_place_that_is_not_there_is_refused(index: int) -> None:
    compressor = TopK(0.01)
    payload = compressor.compress(drawn(0), "w", 0)
    spoilt = replace(payload, buffer=payload.buffer.clone())
    spoilt.parts()[1][7] = index
    with pytest.raises((IndexError, RuntimeError)):
        compressor.add_(drawn(1), spoilt)


def test_nothing_is_read_behind_the_end_of_a_message() -> None:
    packed = TopK(0.01).compress(drawn(0), "w", 0).buffer
    assert not add_sent_each_([(torch.zeros(N), [(packed[:-8], N // 100)])], 1.0, zero=False)
