"""Predict the next symbol of real text: source files of installed packages as bytes and byte pairs; metric: perplexity.

A symbol is a byte or one of the 768 byte pairs that are most frequent in the pretraining text, taken greedily from the
left (1.9 bytes a symbol).  Perplexity is the exponential of the mean loss over all held-out symbols of all ranks,
per symbol.  Whole files are held out.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.training.tasks.task import Batch, NextToken, Phase, Setting, Source, installed, sha256

PACKAGES: dict[Phase, str] = {"pretrain": "networkx", "train": "sympy"}
"""Pure Python, the same on every platform, pinned in the constraints; the two differ in names, prose and layout."""
TEXT_BYTES = 1_500_000
"""Files are taken in order of their names until they reach this size."""
HELD_OUT_EVERY = 8
"""Every eighth file is held out."""
VOCABULARY = 1024
CONTEXT = 48
TEST_BLOCKS = 384
"""Blocks of the held-out text that are evaluated, spread evenly over it."""

Symbols = NDArray[np.int64]


def package_files(package: str) -> list[bytes]:
    """Read the package's Python files in order of their names, until they reach TEXT_BYTES.

    Raises ValueError if the package is not installed, or lists no Python files.
    """
    found = installed(package)
    names = sorted((file for file in found.files or [] if file.suffix == ".py"), key=str)
    contents: list[bytes] = []
    for name in names:
        if sum(map(len, contents)) < TEXT_BYTES:
            contents.append(found.locate_file(name).read_bytes())  # type: ignore[attr-defined]
    if not contents:
        raise ValueError(f"package {package!r} lists no Python files: install it again from its wheel")
    return contents


def frequent_pairs(text: bytes, count: int) -> Symbols:
    """Return the `count` most frequent byte pairs as 256 * first + second; ties go to the smaller value."""
    values = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    frequency = np.bincount(256 * values[:-1] + values[1:], minlength=65536)
    return np.argsort(-frequency, kind="stable")[:count]


def encode(text: bytes, pairs: Symbols) -> Symbols:
    """Replace listed byte pairs, greedily from the left, by 256 + their place in the list; other bytes stay."""
    table = np.full(65536, -1, dtype=np.int64)
    table[pairs] = 256 + np.arange(len(pairs))
    values = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    if len(values) < 2:
        return values
    joined = np.append(table[256 * values[:-1] + values[1:]], -1)
    listed = joined >= 0
    # In a run of positions where a listed pair begins, every second one is taken: its pair swallows the next position.
    index = np.arange(len(values))
    run_start = np.maximum.accumulate(np.where(listed, -1, index)) + 1
    taken = listed & ((index - run_start) % 2 == 0)
    swallowed = np.append(False, taken[:-1])
    return np.where(taken, joined, values)[~swallowed]


def blocks(symbols: Symbols) -> Tensor:
    """Cut symbols into rows of CONTEXT + 1 that overlap by one, (rows, CONTEXT + 1): inputs and, one later, targets."""
    rows = (len(symbols) - 1) // CONTEXT
    index = CONTEXT * np.arange(rows)[:, None] + np.arange(CONTEXT + 1)
    return torch.from_numpy(symbols[index])


class BytePairs(NextToken):
    """Predict the next symbol of a text. Batches have targets, too, (batch, CONTEXT)."""

    units_per_sample = CONTEXT
    evaluated_together = 32

    def __init__(self, setting: Setting) -> None:
        super().__init__(Text(setting.phase))

    def predicted(self, batch: Batch) -> Tensor:
        return batch["targets"]


class Text(Source):
    """The text of a phase, and training windows and held-out ones of it."""

    def __init__(self, phase: Phase) -> None:
        pairs = frequent_pairs(b"".join(package_files(PACKAGES["pretrain"])), VOCABULARY - 256)
        files = package_files(PACKAGES[phase])
        self.texts = [
            b"".join(file for place, file in enumerate(files) if (place % HELD_OUT_EVERY == 0) == held_out)
            for held_out in (False, True)
        ]
        self.train, test = (blocks(encode(text, pairs)) for text in self.texts)
        self.test = test[:: max(1, len(test) // TEST_BLOCKS)][:TEST_BLOCKS]
        self.samples, self.held_out = len(self.train), len(self.test)
        self.data_hash = sha256([pairs.astype("<i8").tobytes(), *self.texts])

    def batch(self, indices: Tensor, step: int) -> Batch:
        return {"input_ids": self.train[indices, :-1], "targets": self.train[indices, 1:]}

    def held_out_batch(self, indices: range) -> Batch:
        rows = self.test[torch.tensor(indices)]
        return {"input_ids": rows[:, :-1], "targets": rows[:, 1:]}
