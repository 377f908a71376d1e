"""Models as `tests.fuzz.programs` describes them, and their optimizers."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.fuzz.programs import WIDTH, Layer, Model, Program

TOKENS = 110


class Scale(nn.Module):
    """A vector, or a single number, that multiplies."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Turned(nn.Module):
    """A matrix that lies in memory the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, WIDTH) / 10).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Detached(nn.Linear):
    """Uses its weight as a constant first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.sin(x) @ self.weight.detach())


class Tall(nn.Module):
    """Up and down again: two matrices of more than 10,000 elements."""

    def __init__(self, bias: bool):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 130, bias), nn.Linear(130, WIDTH, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


class Small(nn.Module):
    """Up and down again by way of few: small matrices."""

    def __init__(self, bias: bool):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 20, bias), nn.Linear(20, WIDTH, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))


KINDS: dict[str, Callable[[bool], nn.Module]] = {
    "wide": lambda bias: nn.Linear(WIDTH, WIDTH, bias),
    "tall": Tall,
    "small": Small,
    "norm": lambda bias: nn.LayerNorm(WIDTH, bias=bias),
    "scale": lambda bias: Scale(WIDTH),
    "scalar": lambda bias: Scale(),
    "turned": lambda bias: Turned(),
    "detached": lambda bias: Detached(WIDTH, WIDTH, bias),
    "normed": lambda bias: weight_norm(nn.Linear(WIDTH, WIDTH, bias)),
}


class Built(nn.Module):
    """The model of a program; `rank` and `step` say which layers are used."""

    def __init__(self, model: Model):
        super().__init__()
        self.described = model
        self.rank, self.step = 0, 0
        self.first = nn.Embedding(TOKENS, WIDTH) if model.embedding else nn.Linear(30, WIDTH)
        self.layers = nn.ModuleList(KINDS[layer.kind](layer.bias) for layer in model.layers)
        self.head = nn.Linear(WIDTH, TOKENS if model.embedding else 7, bias=not model.tied_head)
        if model.embedding and model.tied_head:
            self.head.weight = self.first.weight
        if model.unused:
            self.unused = nn.Linear(WIDTH, WIDTH)
        self._tie()
        for described, layer in zip(model.layers, self.layers, strict=True):
            layer.requires_grad_(not described.frozen)

    def _tie(self) -> None:
        for index, layer in enumerate(self.described.layers):
            if layer.tied_to is not None and index:
                other = layer.tied_to % index
                if layer.kind == self.described.layers[other].kind and layer.kind in ("wide", "detached"):
                    self.layers[index].weight = self.layers[other].weight

    def skips(self, layer: Layer) -> bool:
        return layer.skipped_by == self.rank and self.step % 2 == 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for described, layer in zip(self.described.layers, self.layers, strict=True):
            for _ in range(0 if self.skips(described) else described.uses):
                x = x + torch.tanh(layer(x))
        return self.head(x)


class Counting(torch.optim.Optimizer):
    """Its rate falls with the steps that it has counted in an attribute."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure is not None else None
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(parameter.grad, alpha=group["lr"] / self.count)
        return loss


class Clipping(torch.optim.SGD):
    """Clips by the global norm within step()."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


def build_optimizer(program: Program, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Matrices and all else in groups of their own, if the program says so."""
    held = list(parameters)
    groups: list[Any] = held
    if program.groups:
        vectors = [p for p in held if p.dim() < 2]
        groups = [{"params": [p for p in held if p.dim() >= 2], "weight_decay": 0.1}]
        groups += [{"params": vectors, "lr": 0.02}] if vectors else []
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(groups, 0.1),
        "momentum": lambda: torch.optim.SGD(groups, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
        "adamw": lambda: torch.optim.AdamW(groups, 1e-2),
        "adamw-fused": lambda: torch.optim.AdamW(groups, 1e-2, fused=True),
        "rmsprop": lambda: torch.optim.RMSprop(groups, 1e-3, eps=1e-2),
        "counting": lambda: Counting(groups),
        "clipping": lambda: Clipping(groups, 0.1, momentum=0.9),
    }
    return makers[program.optimizer]()
