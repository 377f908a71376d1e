"""A plan is what a run then holds: frozen weights, buffers, any optimizer's states, and slices of FSDP2."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.__main__ import main
from resireduce.errors import ConfigError
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": 3}, "shards: 3 is not allowed with 8 ranks; give a divisor"),
        ({"shards": 0}, "shards: 0 is not allowed"),
        ({"shards": 2, "max_grad_norm": 1.0}, "max_grad_norm: 1.0 means nothing with shards"),
        ({"shards": 2, "hierarchy": "node", "ranks_per_node": 2}, "hierarchy: .* means nothing with shards"),
    ],
)
def test_what_means_nothing_to_fsdp_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(Net, **settings)


class Wide(nn.Module):
    """Layers of few rows, a group, of which PowerSGD would send more than they have; and a name with brackets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5000, 3) for _ in range(3))
        self.more = nn.ParameterDict({"w[0]": nn.Parameter(torch.empty(200, 100)), "v": nn.Parameter(torch.empty(9))})


@pytest.mark.parametrize(
    ("build", "options"), [(Net, {}), (Net, {"scheme": "w", "itemised": True}), (Wide, {"compressor": "powersgd"})]
)
def test_one_shard_is_the_plan_of_kept_gradients(build: type[nn.Module], options: dict[str, Any]) -> None:
    """Items say who shares a residual; layers that a compressor leaves alone are in no group."""
    whole, sharded = plan(build, gradients="kept", **options), plan(build, shards=1, **options)
    assert {key: whole[key] for key in sharded} == sharded
    assert "itemised" not in options or any(item.members for item in sharded["items"])


def test_a_compressor_that_knows_the_ranks_knows_the_replicas_alone() -> None:
    """Ok-Topk remembers where the region of each rank begins: of eight ranks in fours, two hold the same slices."""
    given = {"scheme": "none", "compressor": "ok-topk"}
    of_two = plan(Net, world_size=2, gradients="kept", **given)["residuals"]
    assert plan(Net, world_size=8, shards=4, **given)["residuals"] == of_two > 0


def test_the_command_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "gpt2-bytes", "--shards", "4", "--optimizer", "adamw"]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "peak_states" not in said and said["total"].endswith("MiB")
