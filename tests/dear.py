"""A small model, and how it is trained with `merge="dear"`, in which averages come in the next forward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from resireduce.core.optimizer import DistributedOptimizer
from tests.worlds import distributed, seeded, take_steps

DEAR: dict[str, Any] = {"compressor": "none", "scheme": "none", "gradients": "kept", "merge": "dear-40000"}
X = torch.linspace(-1, 1, 24).view(4, 6)


class Two(nn.Module):
    """Two layers, and a parameter that the module itself uses, before them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x * self.scale)))


def dear(model: nn.Module, *wrapped: torch.optim.Optimizer, **options: object) -> DistributedOptimizer:
    """An optimizer as DEAR has it, unless told."""
    return distributed(model, *wrapped, **DEAR | options)


def walk(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    """Steps of one batch."""
    take_steps(optimizer, lambda: model(X).square().mean(), count)


def small(merge: str | None, steps: int = 2) -> tuple[Two, DistributedOptimizer]:
    """A model after some steps of AdamW on one rank, of which the last may still be pending, a message a module."""
    model = seeded(Two)
    optimizer = dear(model, torch.optim.AdamW(model.parameters(), 0.1), merge=merge)
    walk(model, optimizer, steps)
    return model, optimizer
