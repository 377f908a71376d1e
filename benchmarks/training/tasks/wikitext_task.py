"""WikiText-2 and -103 (Merity et al., ICLR 2017) in GPT-2's byte pairs; metric: perplexity, per token.

As in the paper's script, the tokens of every 1000 rows are joined and cut into blocks, and the remainder is dropped; a
block predicts all its tokens but the first. It trains on the training split and evaluates the validation split.
Perplexity is the exponential of the mean loss over all predicted tokens of all ranks.
"""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.training.tasks.task import Batch, NextToken, Setting, Source, Synthetic, damaged, open_array
from resireduce.errors import ConfigError, choose

VOCABULARY = 50257
LENGTH = 1024
DATA = ("wikitext-2", "wikitext-103")


class WikiText(NextToken):
    """Under "rank-perplexity" perplexity is what the released code prints."""

    evaluated_together = 2
    """Logits of one block are 200 MB in float32."""

    def __init__(self, setting: Setting) -> None:
        """Open the prepared tokens, or make random ones."""
        name, length = choose("data", setting.data, DATA), setting.length or LENGTH
        self.units_per_sample = length

        def drawn(generators: list[np.random.Generator]) -> Batch:
            rows = [one.integers(VOCABULARY, size=length) for one in generators]
            return {"input_ids": torch.from_numpy(np.stack(rows))}

        super().__init__(
            Synthetic(setting, f"tokens {VOCABULARY} {length}", drawn)
            if setting.synthetic
            else Blocks(open_prepared(name, setting.root), length),
            "rank-perplexity" in setting.released,
        )

    def predicted(self, batch: Batch) -> Tensor:
        return batch["input_ids"][:, 1:]


class Blocks(Source):
    """Blocks of `length` tokens out of prepared token files, which are read where they are needed."""

    def __init__(self, prepared: Prepared, length: int) -> None:
        self.data_hash, self._prepared, self.length = prepared.hash, prepared, length
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
