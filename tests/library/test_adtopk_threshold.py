"""AD-Topk's thresholds, what is theirs alone; test_algorithms.py has whole trainings."""

import pytest
import torch
from torch import Tensor

from resireduce.compressors.adtopk import ADTopKThreshold
from tests.tensors import gradient


def sent(compressor: ADTopKThreshold, grads: list[Tensor]) -> list[Tensor]:
    """What is sent of one gradient after the other."""
    state = compressor.state(grads[0].shape, grads[0])
    return [compressor.decompress(compressor.compress_with(grad, "w", step, state)) for step, grad in enumerate(grads)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_threshold_itself_is_reached(dtype: torch.dtype) -> None:
    grad = gradient(40, 50).to(dtype)
    first, again = sent(ADTopKThreshold(0.1, warm_up=0, every=5), [grad, grad])
    assert torch.equal(again, torch.where(grad.abs() >= first[first != 0].abs().min(), grad, 0))


def test_of_zeros_nothing_is_sent_and_nothing_is_learnt() -> None:
    zeros, grad, compressor = torch.zeros(40, 50), gradient(40, 50), ADTopKThreshold(0.1, warm_up=0, every=50)
    found = sent(compressor, [zeros, zeros, grad, zeros, grad])
    assert [int((one != 0).sum()) for one in found] == [0, 0, 200, 0, 200]
    few = torch.zeros(40, 50).index_fill_(0, torch.tensor([3]), 1.0)
    assert [int((one != 0).sum()) for one in sent(compressor, [few, 2 * few, few / 2])] == [50, 50, 0]
