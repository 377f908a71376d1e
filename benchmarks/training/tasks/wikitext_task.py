"""WikiText-2 and -103 (Merity et al., ICLR 2017) in GPT-2's byte pairs; metric: perplexity, per token.

As in the paper's script, the tokens of every 1000 rows are joined and cut into blocks, and the remainder is dropped; a
block predicts all its tokens but the first. It trains on the training split and evaluates the validation split.
Perplexity is the exponential of the mean loss over all predicted tokens of all ranks.
"""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.training.tasks.source import FromSource, Source, Synthetic, damaged, open_array
from benchmarks.training.tasks.task import Batch, Setting
from resireduce.errors import ConfigError, choose

VOCABULARY = 50257
LENGTH = 1024
DATA = ("wikitext-2", "wikitext-103")


class WikiText(FromSource):
    """Which token comes next? Under "rank-perplexity" perplexity is what the released code prints.

    Batches have input_ids, (batch, length), int64.
    """

    metric = "perplexity"
    higher_is_better = False
    unit = "tokens"
    evaluated_together = 2
    """Logits of one block are 200 MB in float32."""

    def __init__(self, setting: Setting) -> None:
        """Open the prepared tokens, or make random ones."""
        name, length = choose("data", setting.data, DATA), setting.length or LENGTH
        self.units_per_sample = length
        super().__init__(
            SyntheticBlocks(setting, length)
            if setting.synthetic
            else Blocks(open_prepared(name, setting.root), length),
            "rank-perplexity" in setting.released,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats per predicted token."""
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten())

    def _scores(self, model: nn.Module, indices: range) -> list[tuple[float, int]]:
        """Return the sum of losses in nats, and the number of predicted tokens."""
        batch = self.held_out_batch(model, indices)
        count = 1 if self.batch_means else batch["input_ids"][:, 1:].numel()
        return [(self.loss(model, batch).item() * count, count)]

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the perplexity per token."""
        return {"perplexity": float(torch.exp(sums[0] / sums[1]))}


class Blocks(Source):
    """Blocks of `length` tokens out of prepared token files, which are read where they are needed."""

    def __init__(self, prepared: Prepared, length: int) -> None:
        super().__init__(prepared.hash)
        self._prepared, self.length = prepared, length
        self.tokens, self.starts = _open(prepared, "train", length)
        self.test_tokens, self.test_starts = _open(prepared, "validation", length)
        self.samples, self.held_out = len(self.starts), len(self.test_starts)

    def batch(self, indices: Tensor, step: int) -> Batch:
        return self._gather(self.tokens, self.starts[indices.numpy()])

    def held_out_batch(self, indices: range) -> Batch:
        return self._gather(self.test_tokens, self.test_starts[np.array(indices)])

    def _gather(self, tokens: NDArray[np.uint16], starts: NDArray[np.int64]) -> Batch:
        ids = tokens[starts[:, None] + np.arange(self.length)].astype(np.int64)
        # Checked here, not at the start: reading all of the file would show in the measured memory.
        if ids.max() >= VOCABULARY:
            raise damaged(self._prepared, "*_tokens.npy", f"token {ids.max()}, allowed are 0 to {VOCABULARY - 1}")
        return {"input_ids": torch.from_numpy(ids)}


class SyntheticBlocks(Synthetic):
    """Random tokens."""

    def __init__(self, setting: Setting, length: int) -> None:
        super().__init__(setting, f"tokens {VOCABULARY} {length}")
        self.length = length

    def _make(self, generators: list[np.random.Generator]) -> Batch:
        rows = [one.integers(VOCABULARY, size=self.length) for one in generators]
        return {"input_ids": torch.from_numpy(np.stack(rows))}


def block_starts(row_batches: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return where blocks of `length` tokens begin: as many as fit between two neighbours of `row_batches`."""
    return np.concatenate([np.arange(first, last - length + 1, length) for first, last in pairwise(row_batches)])


def _open(prepared: Prepared, split: str, length: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Return a split's tokens and its blocks' starts. Raises ConfigError, one line, if they cannot be used."""
    tokens = open_array(prepared, f"{split}_tokens.npy", "r")
    edges = open_array(prepared, f"{split}_row_batches.npy")
    of_format = tokens.dtype == np.uint16 and tokens.ndim == edges.ndim == 1 and edges.dtype == np.int64
    of_format = of_format and len(edges) > 1
    if not of_format or edges[0] != 0 or edges[-1] != len(tokens) or (np.diff(edges) < 0).any():
        raise ConfigError(f"data: the {split} tokens in {prepared.folder} are not as prepared; prepare them again")
    starts = block_starts(edges, length)
    if not len(starts):
        raise ConfigError(
            f"length: {length} is more than any 1000 rows of {split} in {prepared.folder} have; give a smaller one"
        )
    return tokens, starts
