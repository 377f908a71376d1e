"""Predict the next token of a text; metric: perplexity, the exponential of the mean loss over all tokens of all ranks.

**Byte pairs**: source files of installed packages. A symbol is a byte or one of the 768 byte pairs that are most
frequent in the pretraining text, taken greedily from the left (1.9 bytes a symbol). Whole files are held out.

**WikiText-2 and -103** (Merity et al., ICLR 2017) in GPT-2's byte pairs. As in the paper's script, the tokens of every
1000 rows are joined and cut into blocks, and the remainder is dropped; a block predicts all its tokens but the first.
It trains on the training split and evaluates the validation split.
"""

from abc import abstractmethod
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.core.prepared import Prepared, open_prepared
from benchmarks.training.tasks.task import Batch, InMemory, Phase, Setting, Source, Synthetic, Task, installed, sha256
from resireduce.errors import choose


class NextToken(Task):
    """Which token comes next?

    Batches have input_ids, (batch, length), int64.
    """

    metric = "perplexity"
    higher_is_better = False
    unit = "tokens"

    @abstractmethod
    def predicted(self, batch: Batch) -> Tensor:
        """Return the tokens that the model's first outputs predict, (batch, at most length)."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats per predicted token."""
        targets = self.predicted(batch)
        logits = model(input_ids=batch["input_ids"]).logits[:, : targets.shape[1]]
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _scores(self, model: nn.Module, indices: range) -> list[tuple[float, int]]:
        """Return the sum of losses in nats, and the number of predicted tokens."""
        batch = self.held_out_batch(model, indices)
        count = 1 if self.batch_means else self.predicted(batch).numel()
        return [(self.loss(model, batch).item() * count, count)]

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the perplexity per token."""
        return {"perplexity": float(torch.exp(sums[0] / sums[1]))}


# --- Byte pairs ---

PACKAGES: dict[Phase, str] = {"pretrain": "networkx", "train": "sympy"}
"""Pure Python, the same on every platform, pinned in the constraints; the two differ in names, prose and layout."""
TEXT_BYTES = 1_500_000
"""Files are taken in order of their names until they reach this size."""
HELD_OUT_EVERY = 8
"""Every eighth file is held out."""
SYMBOLS = 1024
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
        pairs = frequent_pairs(b"".join(package_files(PACKAGES["pretrain"])), SYMBOLS - 256)
        files = package_files(PACKAGES[setting.phase])
        self.texts = [
            b"".join(file for place, file in enumerate(files) if (place % HELD_OUT_EVERY == 0) == held_out)
            for held_out in (False, True)
        ]
        train, test = (blocks(encode(text, pairs)) for text in self.texts)
        test = test[:: max(1, len(test) // TEST_BLOCKS)][:TEST_BLOCKS]
        inputs, asked = ({"input_ids": rows[:, :-1], "targets": rows[:, 1:]} for rows in (train, test))
        super().__init__(InMemory(inputs, asked, sha256([pairs.astype("<i8").tobytes(), *self.texts])))

    def predicted(self, batch: Batch) -> Tensor:
        return batch["targets"]


# --- WikiText ---

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
        self.data_hash, self.length = prepared.hash, length
        tokens, edges = (
            [np.load(prepared.folder / f"{split}_{kind}.npy", "r") for split in ("train", "validation")]
            for kind in ("tokens", "row_batches")
        )
        self.tokens, self.test_tokens = tokens
        self.starts, self.test_starts = (  # as many blocks as fit between two neighbouring edges
            np.concatenate([np.arange(first, last - length + 1, length) for first, last in pairwise(of_split)])
            for of_split in edges
        )
        self.samples, self.held_out = len(self.starts), len(self.test_starts)

    def batch(self, indices: Tensor, step: int) -> Batch:
        return self._gather(self.tokens, self.starts[indices.numpy()])

    def held_out_batch(self, indices: range) -> Batch:
        return self._gather(self.test_tokens, self.test_starts[np.array(indices)])

    def _gather(self, tokens: NDArray[np.uint16], starts: NDArray[np.int64]) -> Batch:
        ids = tokens[starts[:, None] + np.arange(self.length)].astype(np.int64)
        return {"input_ids": torch.from_numpy(ids)}
