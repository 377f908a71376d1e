"""The models on which ways are compared, and a batch so small that activations hardly count."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training.models.bert import bert_base, bert_questions
from benchmarks.training.models.gpt2 import gpt2_bytes, gpt2_medium

TOKENS = 16
"""Tokens in the one sample of a rank's batch."""
CLASSES = 16

Forward = Callable[[nn.Module], Tensor]
"""Returns the loss of the one batch, for a model or its wrapper."""


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(functional.relu(self.up(self.norm(x))))
        return out


class Stack(nn.Module):
    """An embedding, blocks and a linear head."""

    def __init__(self, words: int, width: int, blocks: int):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def _answers(words: int) -> Forward:
    tokens = torch.randint(words, (1, TOKENS))

    def forward(model: nn.Module) -> Tensor:
        out = model(input_ids=tokens)
        return functional.cross_entropy(torch.cat([out.start_logits, out.end_logits]), torch.tensor([1, 2]))

    return forward


def _classes(words: int) -> Forward:
    tokens, labels = torch.randint(words, (1, TOKENS)), torch.randint(CLASSES, (TOKENS,))
    return lambda model: functional.cross_entropy(model(tokens).flatten(0, 1), labels)


def _next_tokens(words: int, count: int) -> Forward:
    tokens = torch.randint(words, (1, count))

    def forward(model: nn.Module) -> Tensor:
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return forward


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Forward]]] = {
    "bert-base": (bert_base, lambda: _answers(30528)),
    "bert-questions": (bert_questions, lambda: _answers(768)),
    "gpt2-medium": (gpt2_medium, lambda: _next_tokens(50257, 2 * TOKENS)),
    "gpt2-bytes": (gpt2_bytes, lambda: _next_tokens(1024, 2 * TOKENS)),
    "stack": (lambda: Stack(7680, 1024, 8), lambda: _classes(7680)),
    "small-stack": (lambda: Stack(512, 64, 4), lambda: _classes(512)),
}
"""Each model's constructor and batch: large models are measured; small ones load all libraries beforehand."""
WARM_UP = {"bert-base": "bert-questions", "gpt2-medium": "gpt2-bytes", "stack": "small-stack"}
