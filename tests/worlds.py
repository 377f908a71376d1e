"""Small models and training loops that the tests of the library share."""

import copy
import io
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import resireduce
from resireduce import CompressionHook, ShardedCompressionHook
from resireduce.comm.base import Communicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.optim import SecondMomentAdamW
from resireduce.scheme import COMPRESSORS
from tests.threads import LocalWorld

Model = TypeVar("Model", bound=nn.Module)
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "weight-decay": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=1e-2),
    "fused-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-2, fused=True),
    "fused-adamw": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=1e-2, fused=True),
    "second-moment": lambda p: SecondMomentAdamW(p, 1e-3),
}


KINDS = (
    "none", "topk", "randomk", "threshold", "dgc-momentum", "sidco-gp", "fp16", "qsgd", "signsgd", "powersgd", "ok-topk"
)  # fmt: skip
"""A compressor of each kind: summed or gathered, in equal sizes or not, with a draw, a velocity, a memory, a vote,
rounds or an exchange. What is done with messages needs no others."""


class Block(nn.Module):
    """Two equal-shaped matrices in each block: groups across blocks."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Embedding-like specific layer, a run of equal blocks, a layer that shares its weight with another, small tensors.

    Widths are such that no activation (batch 6 or 7) has the shape of a parameter.
    """

    def __init__(self, width: int = 72, blocks: int = 3, tied: bool = False):
        super().__init__()
        self.first = nn.Linear(600, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 600 if tied else 10, bias=not tied)
        if tied:
            self.head.weight = nn.Parameter(torch.empty(600, width).normal_(std=0.05))
            self.first = nn.Embedding(600, width)
            self.first.weight = self.head.weight
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def seeded(build: Callable[[], Model], seed: int = 0) -> Model:
    """A model with the same parameters every time; made before threads start, which share the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def loss_of(model: nn.Module, generator: torch.Generator) -> Tensor:
    """The loss of a batch that the generator makes."""
    x, y = torch.randn(6, 600, generator=generator), torch.randint(10, (6,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def distributed(
    model: nn.Module, wrapped: torch.optim.Optimizer | None = None, *, lr: float = 0.1, **options: object
) -> DistributedOptimizer:
    """SGD of what is trained, distributed on one rank and with full residuals unless told."""
    wrapped = wrapped or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr)
    return resireduce.distribute(model, wrapped, **{"backend": "local", "scheme": "baseline", **options})  # type: ignore[arg-type]


class Given(nn.Module):
    """Weights of zero, whose gradients are what they are multiplied by."""

    def __init__(self, dtype: torch.dtype = torch.float64, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, gradients: Mapping[str, Tensor]) -> Tensor:
        return sum((self.get_parameter(name) * grad).sum() for name, grad in gradients.items())  # type: ignore[return-value]


def distribute_given(
    communicator: Communicator, shapes: Mapping[str, tuple[int, ...]], **options: object
) -> tuple[Given, DistributedOptimizer]:
    """Weights of zero, each of whose steps moves them by the average, and back."""
    model = Given(**shapes)
    return model, distributed(model, lr=1.0, backend=communicator, **options)


def averages(model: Given, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a step at rate 1 brings back of these gradients of this rank."""
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimizer.zero_grad()
    if gradients:
        model(gradients).backward()
    optimizer.step()
    return {name: before[name] - one.detach() for name, one in model.named_parameters()}


def take_steps(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], count: int = 1) -> None:
    """Take steps as a plain training loop does."""
    for _ in range(count):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def sgd_for(options: Mapping[str, object]) -> str:
    """SGD with momentum, unless the compressor takes its place."""
    name = options.get("compressor")
    return "sgd" if isinstance(name, str) and COMPRESSORS[name].corrects_momentum else "momentum"


def train(
    communicator: Communicator,
    model: nn.Module,
    *,
    optimizer: str | None = None,
    steps: int = 8,
    loss: Callable[[nn.Module, torch.Generator], Tensor] = loss_of,
    **options: object,
) -> tuple[nn.Module, DistributedOptimizer]:
    """Train a copy of `model` on this rank's own batches; at density 0.05, by SGD with momentum, unless told."""
    model = copy.deepcopy(model)
    wrapped = OPTIMIZERS[optimizer or sgd_for(options)](list(model.parameters()))
    ours = resireduce.distribute(model, wrapped, backend=communicator, **{"density": 0.05, **options})  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(communicator.rank)
    take_steps(ours, lambda: loss(model, generator), steps)
    return model, ours


def train_world(size: int, model: nn.Module, **options: object) -> list[tuple[nn.Module, DistributedOptimizer]]:
    """`train` on every rank of a local world."""
    return LocalWorld(size).run(lambda communicator: train(communicator, model, **options))  # type: ignore[arg-type]


def reloaded(value: Any, weights_only: bool = True) -> Any:
    """`value`, saved and loaded."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def saved(size: int, **options: object) -> list[dict[str, Tensor]]:
    """What each of so many ranks has saved of its residuals after three steps."""
    trained = train_world(size, seeded(Net), steps=3, **options)
    return [copy.deepcopy(optimizer.residual_state_dict()) for _, optimizer in trained]


def loaded(size: int, states: list[dict[str, Tensor]], **options: object) -> list[DistributedOptimizer]:
    """So many ranks among which `states` were shared out."""
    start = seeded(Net)

    def rank(communicator: Communicator) -> DistributedOptimizer:
        _, optimizer = train(communicator, start, steps=0, **options)  # type: ignore[arg-type]
        resireduce.redistribute(optimizer, states)
        return optimizer

    return LocalWorld(size).run(rank)


RESIDUALS = ("full.", "partial.", "average.", "weighted.", "member.", "rows.", "rows_columns.")
"""How names of residuals begin in what is saved; beside them are velocities, and what compressors remember."""


def residuals(holder: DistributedOptimizer | CompressionHook | ShardedCompressionHook) -> dict[str, Tensor]:
    """What this rank has kept back of gradients, by its names in what is saved."""
    return {name: held for name, held in holder.residual_state_dict().items() if name.startswith(RESIDUALS)}


def same(first: nn.Module, second: nn.Module) -> bool:
    """Whether all parameters are equal bit for bit."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
