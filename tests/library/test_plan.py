"""A plan is what a run then holds: frozen weights, buffers and any optimizer's states."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.plan import plan
from resireduce.planning.memory import measure_states
from tests.worlds import Net, loss_of, seeded

SCHEMES = ("baseline", "w+2d", "none")


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank beside it, as LoRA has them, and buffers."""

    def __init__(self, width: int = 600, rank: int = 40):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("shared", torch.zeros(7))
        self.register_buffer("alias", self.shared)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.base(x) + self.up(self.down(x)))
        return out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_frozen_weights_and_buffers_have_rows_of_their_own(scheme: str) -> None:
    model = seeded(Adapted)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = resireduce.distribute(model, torch.optim.SGD(trained, 0.1, momentum=0.9), scheme, backend="local")
    for seed in range(2):
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(seed)).backward()
        optimizer.step()
    planned, states = plan(Adapted, scheme=scheme, world_size=1), measure_states(optimizer).as_dict()
    assert states == {key: planned[key] for key in states}, "frozen weights are none of the model states"
    assert planned["frozen"] == sum(p.nbytes for p in model.parameters()) - states["parameters"] == 4 * 600 * 601
    assert planned["buffers"] == 4 * (600 + 600 + 7) + 8, "running statistics, one shared tensor, a count"
    assert planned["baseline_total"] < planned["frozen"], "what is frozen is in no other figure"
    assert plan(Net)["frozen"] == 0 == plan(partial(nn.Linear, 200, 100))["buffers"]


OPTIMIZERS = [f"torch.optim:{name}" for name in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "NAdam",
                                                 "RAdam", "RMSprop", "Rprop")]  # fmt: skip
OPTIMIZERS += ["resireduce.optim:DGCSGD", "resireduce.optim:SecondMomentAdamW"]
OPTIMIZERS += [f"bitsandbytes.optim:{name}" for name in ("AdamW", "AdamW8bit", "Lion8bit", "AdEMAMix8bit")]


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_is_planned_to_the_byte(name: str, gradients: str) -> None:
    module, _, attribute = name.partition(":")
    kind = getattr(pytest.importorskip(module), attribute)
    model = seeded(Net)
    wrapped = kind(list(model.parameters()), lr=0.01)
    optimizer = resireduce.distribute(model, wrapped, "w+2d", backend="local", gradients=gradients)
    for seed in range(2):
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(seed)).backward()
        optimizer.step()
    states = measure_states(optimizer).as_dict()
    planned = plan(Net, optimizer=name, optimizer_args={"lr": 0.01}, gradients=gradients, world_size=1)
    assert states == {key: planned[key] for key in states}
