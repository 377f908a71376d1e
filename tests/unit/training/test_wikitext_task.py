"""WikiText: blocks, perplexity against NumPy in double precision, and what the released code prints."""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.training.tasks.task import Setting
from benchmarks.training.tasks.texts import WikiText
from tests.prepared import save_wikitext

WORDS = 50


class Guess(nn.Module):
    """Logits that depend on the token alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(3 * torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(seed)))

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.weight[input_ids])


def make(root, length=8, train=(100, [0, 50, 100]), validation=(90, [0, 47, 90]), seed=0, **options) -> WikiText:
    generator = np.random.default_rng(seed)
    splits = {
        split: (generator.integers(0, WORDS, count), edges)
        for split, (count, edges) in (("train", train), ("validation", validation))
    }
    save_wikitext(root, splits)
    return WikiText(Setting(data="wikitext-103", root=root, length=length, **options))


def naive_blocks(tokens: list[int], edges: list[int], length: int) -> list[list[int]]:
    """Each group of rows on its own: whole blocks only."""
    found = []
    for number in range(len(edges) - 1):
        group = tokens[edges[number] : edges[number + 1]]
        while len(group) >= length:
            found.append(group[:length])
            group = group[length:]
    return found


def losses(model: Guess, blocks: list[list[int]]) -> list[list[float]]:
    """Of every predicted token of every block, in nats."""
    table = model.weight.detach().numpy().astype(np.float64)
    logs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    return [[-float(logs[pair]) for pair in pairwise(block)] for block in blocks]


@pytest.mark.parametrize("case", range(10))
def test_blocks_and_perplexity_agree_with_numpy(tmp_path, case):
    generator = np.random.default_rng(case)
    edges = [0, *np.sort(generator.integers(0, 60, 3)).tolist(), 75]
    length, world_size = int(generator.integers(2, 12)), int(generator.integers(1, 5))
    task = make(tmp_path, length, validation=(75, edges), seed=case)
    model = Guess(case)
    trained_on, held_out = (
        naive_blocks(np.load(tmp_path / f"wikitext-103/{split}_tokens.npy").tolist(), groups, length)
        for split, groups in (("train", [0, 50, 100]), ("validation", edges))
    )
    assert task.batch(torch.arange(len(task)))["input_ids"].tolist() == trained_on, "none crosses a batch of rows"
    flat = np.concatenate(losses(model, held_out))
    sums = sum(task.evaluate(model, rank, world_size) for rank in range(world_size))
    assert sums[1] == len(flat)
    assert task.metrics_from(sums)["perplexity"] == pytest.approx(math.exp(flat.mean()), rel=1e-5)


def test_rank_perplexity_is_of_rank_0_alone_and_by_batches(tmp_path):
    task = make(tmp_path, released=frozenset({"rank-perplexity"}))
    model = Guess()
    edges = [0, 47, 90]
    blocks = naive_blocks(np.load(tmp_path / "wikitext-103/validation_tokens.npy").tolist(), edges, 8)
    assert len(blocks) == 10
    own = [np.mean(each) for each in losses(model, blocks)[::2]]
    batches = [np.mean(own[:2]), np.mean(own[2:4]), own[4]]
    sums = sum(task.evaluate(model, rank, 2) for rank in range(2))
    assert task.metrics_from(sums)["perplexity"] == pytest.approx(math.exp(np.mean(batches)), rel=1e-5)
