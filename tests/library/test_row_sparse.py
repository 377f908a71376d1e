"""Gradients that are mostly zeros, as an embedding's: zeros are not sent."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.compressors.thresholds import Threshold
from resireduce.compressors.topk import SparseCompressor
from resireduce.scheme import build_compressor
from tests.tensors import densities, tensors
from tests.threads import LocalWorld
from tests.worlds import distributed

WORDS, WIDTH, TOKENS = 30_528, 16, 8
RAGGED = ("dgc", "dgc-momentum", "dgc-simple", "threshold", "gaussian", "redsync-trim", "sidco-gamma")
"""One compressor of each kind that fits a threshold."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Words(nn.Module):
    """BERT's vocabulary in vectors of few numbers, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def sent_by(compressor: SparseCompressor, grad: Tensor) -> Tensor:
    """The values of its payload."""
    return compressor.compress(grad, "w", 0).parts()[0]


@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize("half", [False, True])
@settings(max_examples=40)
@given(grad=tensors(DTYPES, 40, 60), density=densities, scale=st.sampled_from([1.0, 1e-7]))
def test_no_zero_is_ever_sent(name: str, half: bool, grad: Tensor, density: float, scale: float) -> None:
    kind = type(build_compressor(name, density))
    compressor = kind(half=half, threshold=0.0) if kind is Threshold else kind(density, half=half)
    values = sent_by(compressor, grad * scale)
    assert values.all(), f"{int((values == 0).sum())} of {len(values)} are zeros"


@pytest.mark.parametrize("compressor", RAGGED)
def test_ranks_that_saw_other_words_train_alike(compressor: str) -> None:
    def rank(communicator: Communicator) -> tuple[Tensor, Tensor]:
        model = Words()
        nn.init.ones_(model.embedding.weight)
        optimizer = distributed(model, lr=1.0, backend=communicator, compressor=compressor, density=0.01)
        for step in range(2):
            optimizer.zero_grad()
            # In the second step no rank has a gradient but of zeros, and all payloads are empty.
            (model.embedding(torch.tensor([5 * communicator.rank])) * (1 - step)).sum().backward()
            optimizer.step()
        return model.embedding.weight.detach(), optimizer.residual_state_dict()["full.embedding.weight"]

    (first, kept), (second, _) = LocalWorld(2).run(rank)
    assert torch.equal(first, second) and not kept.any()
    moved = (first - 1).sum(1).nonzero().view(-1).tolist()
    assert moved == [0, 5] and (first[moved] <= 0.5).all()
