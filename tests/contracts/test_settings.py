"""Settings beyond scheme and compressor: warm-up, density step by step, own schemes, when parameters change."""

import copy
import warnings
from dataclasses import fields
from functools import cache
from inspect import signature
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.topk import TopK
from resireduce.errors import ConfigError, UsageError
from resireduce.grouping import Grouping
from resireduce.plan import plan
from resireduce.scheme import COMPRESSORS, GRADIENTS
from resireduce.settings import Settings
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loss_of, residuals, same, seeded, train, train_world


@cache
def plain(gradients: str, steps: int) -> nn.Module:
    """Trained without compression."""
    return train_world(2, seeded(Net), steps=steps, gradients=gradients, compressor="none", scheme="none")[0][0]


@pytest.mark.parametrize(("compressor", "gradients"), zip(COMPRESSORS, cycle(GRADIENTS), strict=False))
def test_warm_up_is_no_compression_at_first(compressor: str, gradients: str) -> None:
    options = {"gradients": gradients, "compressor": compressor, "scheme": "baseline"}
    if COMPRESSORS[compressor].corrects_momentum:
        return  # its velocities are formed from the first step on
    warm = train_world(2, seeded(Net), steps=3, warm_up_steps=3, **options)
    assert same(plain(gradients, 3), warm[0][0])
    residual = residuals(warm[0][1])
    assert not any(tensor.any() for tensor in residual.values()), "nothing is left unsent"
    longer = train_world(2, seeded(Net), steps=4, warm_up_steps=3, **options)
    assert same(longer[0][0], longer[1][0])
    if compressor != "none":
        assert any(tensor.any() for tensor in residuals(longer[0][1]).values())
        assert not same(longer[0][0], plain(gradients, 4))


def test_a_density_that_changes_is_that_of_each_step() -> None:
    sent: list[int] = []

    class Watched(LocalCommunicator):
        def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True):  # type: ignore[no-untyped-def]
            if name == "first.weight":
                sent.append(tensor.numel() // 8)
            return super().all_gather(tensor, name, equal_sizes)

    train(Watched(), seeded(Net), steps=4, scheme="baseline", density=lambda step: 0.5 / 10**step)
    assert sent == [21600, 2160, 216, 21], "of 43,200 elements"
    fixed, _ = train(LocalCommunicator(), seeded(Net), steps=4, density=0.05)
    function, _ = train(LocalCommunicator(), seeded(Net), steps=4, density=lambda step: 0.05)
    assert same(fixed, function)
    with pytest.raises(ConfigError, match=r"density: 2\.0 is not allowed"):
        train(LocalCommunicator(), seeded(Net), density=lambda step: 2.0)


def test_distribute_has_the_fields_of_settings_as_keywords() -> None:
    defaults = {one.name: one.default for one in fields(Settings)}
    keywords = list(signature(resireduce.distribute).parameters.values())[2:]
    assert [(one.name, one.default) for one in keywords] == list(defaults.items())
    others = list(signature(resireduce.compress_ddp).parameters.values())[1:]
    assert all(defaults[one.name] == one.default for one in others)


KEPT = {"gradients": "kept"}
DIFFERENT: dict[str, tuple[dict[str, object], object]] = {
    "density": ({}, lambda step: 0.05),
    "scheme": ({}, "a"),
    "compressor": ({}, "fp16"),
    "groups": ({}, Grouping(specific=("first.weight",))),
    "gradients": ({}, "kept"),
    "residual_dtype": ({}, "bfloat16"),
    "backward_passes_per_step": ({}, 2),
    "dense": ({}, ["first.weight"]),
    "options": ({"scheme": "w"}, {"phi": 0.4}),
    "max_grad_norm": ({}, 1.0),
    "max_local_grad_norm": (KEPT, 1.0),
    "grad_scaler": ({}, resireduce.GradScaler("cpu")),
    "residual_device": ({}, "cpu"),
    "update": ({"compressor": "none"}, "in_backward"),
    "warm_up_steps": ({}, 1),
    "hierarchy": ({}, "node"),
    "merge": ({}, "one"),
}
"""Another value than the default of each setting that ranks must have alike, and what else that takes."""


def test_every_setting_is_compared_between_ranks() -> None:
    assert DIFFERENT.keys() == Settings().agreed().keys()


@pytest.mark.parametrize("field", DIFFERENT)
def test_a_setting_that_one_rank_was_given_alone(field: str) -> None:
    common, other = DIFFERENT[field]
    models = [seeded(Net) for _ in range(2)]

    def refused(communicator: Communicator) -> str:
        mine = common | ({field: other} if communicator.rank else {})
        with pytest.raises(ConfigError) as raised:
            train(communicator, models[communicator.rank], **mine)
        return str(raised.value)

    first, second = LocalWorld(2).run(refused)
    assert first.startswith("settings or model differ between ranks") and second.startswith(f"{field}: ")


def test_updates_in_the_backward_pass_are_the_same_and_must_be_asked_for() -> None:
    options = {"compressor": "none", "scheme": "none", "steps": 5}
    late, early = (train_world(2, seeded(Net), update=update, **options) for update in ("in_step", "in_backward"))
    assert same(late[0][0], early[0][0])
    model = seeded(lambda: nn.Sequential(*[nn.Linear(130, 130) for _ in range(6)]))
    before = copy.deepcopy(model)
    optimizer = distributed(model, scheme="none", compressor="none")
    model(torch.ones(2, 130)).sum().backward()
    assert same(model, before), "nothing changes before step()"
    optimizer.step()
    assert not same(model, before)
    planned = {u: plan(Net, scheme="none", compressor="none", update=u) for u in ("in_step", "in_backward")}
    assert planned["in_step"]["waiting"] == sum(p.nbytes for p in Net().parameters())
    assert planned["in_backward"]["waiting"] == 0
    assert planned["in_backward"]["peak_states"] < planned["in_step"]["peak_states"]


class Another(torch.optim.SGD):
    """Another class."""


def refusals(make: list[object], build: list[object] = [Net, Net]) -> list[str]:  # noqa: B006
    """What each of two ranks is told, whose optimizers and models are made so."""

    def rank(communicator: Communicator) -> str:
        model = seeded(build[communicator.rank])  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as raised, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resireduce.distribute(model, make[communicator.rank](model), backend=communicator)  # type: ignore[operator]
        return str(raised.value)

    return LocalWorld(2).run(rank)


def test_ranks_whose_optimizers_or_buffers_differ() -> None:
    def sgd(model: nn.Module, **options: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.1, **options)  # type: ignore[arg-type]

    def grouped(turn: int) -> object:
        def make(model: nn.Module) -> torch.optim.Optimizer:
            parts = [list(model.first.parameters()), [p for n, p in model.named_parameters() if "first" not in n]]
            return torch.optim.SGD([{"params": part} for part in parts[::turn]], 0.1)

        return make

    class Buffered(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("extra", torch.zeros(3))

    assert (
        "test_settings.Another on rank 1, torch.optim.sgd.SGD on rank 0"
        in (refusals([sgd, lambda m: Another(m.parameters(), 0.1)])[1])
    )
    assert "option momentum of parameter group 0: 0.9 on rank 1" in refusals([sgd, lambda m: sgd(m, momentum=0.9)])[1]
    assert "parameters of group 0: blocks.0.up.weight" in refusals([grouped(1), grouped(-1)])[1]
    in_turn = refusals([sgd, lambda m: torch.optim.SGD([*m.parameters()][::-1], 0.1)])
    assert "parameters of group 0: norm.bias" in in_turn[1]
    narrow = refusals([sgd, sgd], [Net, lambda: Net(width=36)])
    assert "parameter number 0: first.weight (36, 600) torch.float32 on rank 1, first.weight (72," in narrow[1]
    first, second = refusals([sgd, sgd], [Net, Buffered])
    assert "settings or model differ" in first and "buffer number 0: extra (3,) torch.float32 on rank 1" in second


def test_buffers_of_any_kind_are_rank_0s() -> None:
    def build() -> nn.Module:
        model = Net()
        model.register_buffer("expanded", torch.arange(3.0).expand(4, 3))
        model.register_buffer("alike", torch.tensor(2.0).expand(4, 3))
        model.register_buffer("counts", torch.arange(5))
        model.register_buffer("mask", torch.tensor([True, False]))
        model.register_buffer("empty", torch.zeros(0))
        model.register_buffer("graph", torch.eye(3).to_sparse())
        model.register_parameter("wave", nn.Parameter(torch.ones(3, dtype=torch.complex64), requires_grad=False))
        return model

    def rank(communicator: Communicator) -> nn.Module:
        model = seeded(build)
        if communicator.rank:
            for buffer in (model.counts, model.mask, model.graph, model.wave.data):  # type: ignore[union-attr]
                buffer.zero_()  # type: ignore[operator, union-attr]
            model.expanded, model.alike = torch.zeros(3).expand(4, 3), torch.tensor(0.0).expand(4, 3)
        resireduce.distribute(
            model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1), backend=communicator
        )
        return model

    first, second = LocalWorld(2).run(rank)
    pairs = zip(first.buffers(), second.buffers(), strict=True)
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in pairs) and same(first, second)
    assert second.graph.to_dense().trace() == 3  # type: ignore[operator, union-attr]
    assert second.counts.tolist() == [0, 1, 2, 3, 4] and second.wave.abs().sum() == 3  # type: ignore[union-attr]


def test_closing() -> None:
    model, wrapped = seeded(Net), None
    wrapped = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with resireduce.distribute(model, wrapped, "baseline", TopK(0.05), backend="local") as optimizer:
        loss_of(model, torch.Generator()).backward()
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in model.parameters())
    for act in (optimizer.step, optimizer.zero_grad, optimizer.residual_state_dict, lambda: optimizer.grad_scaler):
        with pytest.raises(UsageError, match=r"the optimizer is closed: train with optimizer\.wrapped"):
            act()
    optimizer.close()
    plain = seeded(Net)
    other = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for trained, one in ((model, optimizer.wrapped), (plain, other)):
        loss_of(trained, torch.Generator().manual_seed(1)).backward()
        one.step()
        one.zero_grad()
    assert same(model, plain)
    again = resireduce.distribute(model, wrapped, "w+2d", density=0.1, backend="local", gradients="kept")
    loss_of(model, torch.Generator()).backward()
    again.step()
    assert again.steps == 1
