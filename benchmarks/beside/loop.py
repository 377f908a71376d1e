"""What every way to train comes down to, so that all are run and measured alike."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.beside.models import Forward
from resireduce.memory import LiveBytes


@dataclass(frozen=True)
class Loop:
    """A model made ready, and the two calls beside its backward pass."""

    model: nn.Module
    """What the batch is given to: the model, or what it has been wrapped in."""
    step: Callable[[], object]
    zero_grad: Callable[[], object]
    held: Callable[[], Mapping[str, list[Tensor]]] | None = None
    """The model states as tensors, by kind, where the way can tell."""
    follow: Callable[[], LiveBytes] | None = None
    """A tracker of all that lives in a step, activations left out, where the way has one."""

    def train(self, forward: Forward) -> None:
        """One step, as in torch's tutorials."""
        self.zero_grad()
        forward(self.model).backward()
        self.step()


def adamw(parameters: Iterable[nn.Parameter], eight_bit: bool = False) -> Optimizer:
    """Return the optimizer of all ways. ImportError if there is no bitsandbytes."""
    if not eight_bit:
        return torch.optim.AdamW(parameters, lr=1e-4)
    sys.path.append(f"{sys.prefix}/optimizers")  # where make puts those of others
    optimizer: Optimizer = import_module("bitsandbytes.optim").AdamW8bit(parameters, lr=1e-4)
    return optimizer
