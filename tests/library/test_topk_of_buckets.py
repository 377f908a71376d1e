"""Top-k of a bucket's tensors at once: what the compressor and the residual do for one tensor after the other."""

import pytest
import torch
from torch import Tensor

from resireduce.compressors.topk import TopK
from resireduce.kernels.selection import compress_topk_, message_places

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DENSITY = 0.03


def drawn(sizes: list[int], dtype: torch.dtype, seed: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=source).mul(4).round().to(dtype) for size in sizes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [[700], [1, 40, 300, 99, 2000]])
def test_a_bucket_is_its_tensors_one_by_one(sizes: list[int], dtype: torch.dtype) -> None:
    gradients, residuals = drawn(sizes, dtype, 1), drawn(sizes, dtype, 2)
    compressor, left, payloads = TopK(DENSITY), [one.clone() for one in residuals], []
    for gradient, one in zip(gradients, left, strict=True):
        payloads.append(compressor.compress(one.add_(gradient), "", 0))
        compressor.error_(one, payloads[-1])
    ks = [payload.layout[0][1] for payload in payloads]
    places, nbytes = message_places(tuple(ks), dtype)
    message = torch.full((nbytes,), 7, dtype=torch.uint8)
    assert compress_topk_(gradients, residuals, ks, message).tolist() == [0] * len(sizes)
    assert message.tolist() == torch.cat([payload.buffer for payload in payloads]).tolist()
    assert all(map(torch.equal, residuals, left))
    for (at, indices_at), payload in zip(places, payloads, strict=True):
        values, indices = payload.parts()
        assert message[at : at + values.nbytes].view(dtype).equal(values)
        assert message[indices_at : indices_at + indices.nbytes].view(torch.int32).equal(indices)


def test_a_gradient_that_is_not_finite_is_zeros_and_one_that_is_not_there_adds_nothing() -> None:
    gradients = drawn([50, 60, 70], torch.float32, 1)
    residuals = drawn([50, 60, 70, 80], torch.float32, 2)
    left = [one.clone() for one in residuals]
    left[1] += gradients[1]
    gradients[0][3], gradients[2][-1] = torch.nan, -torch.inf
    ks = [1, 2, 3, 4]
    message = torch.empty(message_places(tuple(ks), torch.float32)[1], dtype=torch.uint8)
    assert compress_topk_([*gradients, None], residuals, ks, message).tolist() == [1, 0, 1, 0]
    places, _ = message_places(tuple(ks), torch.float32)
    for residual, k, (at, indices_at) in zip(residuals, ks, places, strict=True):
        chosen = message[indices_at : indices_at + 4 * k].view(torch.int32)
        residual[chosen.long()] += message[at : at + 4 * k].view(torch.float32)
    assert all(map(torch.equal, residuals, left))


def test_a_bucket_may_be_empty_or_hold_an_empty_tensor() -> None:
    message = torch.empty(8, dtype=torch.uint8)
    assert compress_topk_([], [], [], message[:0]).tolist() == []
    assert compress_topk_([torch.ones(0), torch.ones(1)], [torch.ones(0), torch.ones(1)], [0, 1], message).sum() == 0
    assert message[:4].view(torch.float32).item() == 2.0
