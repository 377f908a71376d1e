"""What scripts of others do around an optimizer: it comes out as in plain torch, or is refused by name."""

import copy
import warnings
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.errors import ConfigError, UsageError

KINDS = ["streamed", "kept"]


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    return model(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))).square().mean()


def distributed(model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    return resireduce.distribute(model, optimizer, "none", "none", backend="local", **options)


@pytest.mark.parametrize("change", ["unfrozen", "used later", "replaced"])
def test_parameters_that_nobody_averages_come_later(change: str) -> None:
    model = net()
    head = model[2]
    head.requires_grad_(change != "unfrozen")
    optimizer = distributed(model, optimizer=torch.optim.SGD(model[0].parameters(), 0.1))

    def train(whole: bool) -> None:
        optimizer.zero_grad()
        model.zero_grad()
        (loss_of(model, 0) if whole else model[0](torch.ones(2, 6)).square().mean()).backward()
        optimizer.step()
        torch.optim.SGD(model[2].parameters(), 0.1).step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            train(whole=False)
    head.requires_grad_(True)
    if change == "replaced":
        model[2] = nn.Linear(head.in_features, head.out_features)
    with pytest.warns(UserWarning, match=r"'2.weight' and 1 more: trained, but not by the optimizer"):
        train(whole=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(whole=True)


def test_a_gradient_that_no_optimizer_uses_is_not_told() -> None:
    model = net()
    optimizer = distributed(model, optimizer=torch.optim.SGD(model[0].parameters(), 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(2):
            loss_of(model, seed).backward()
            optimizer.step()


def test_gradients_set_to_zero_are_let_go_where_they_are_streamed_and_that_is_said() -> None:
    model = net()
    with pytest.warns(UserWarning, match=r"zero_grad\(set_to_none=False\): streamed gradients are let go"):
        distributed(model).zero_grad(set_to_none=False)


class Around(torch.optim.Optimizer):
    """An optimizer around another that decays what has a gradient after each step."""

    def __init__(self, inner: torch.optim.Optimizer):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self) -> None:  # type: ignore[override]
        self.inner.step()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data.mul_(0.9)


def test_an_optimizer_around_it_that_would_find_no_gradients_is_told() -> None:
    model = net()
    outer = Around(distributed(model))
    loss_of(model, 0).backward()
    with pytest.warns(UserWarning, match=r"Around calls step\(\) of what .* leaves out all; put it inside"):
        outer.step()
    loss_of(model, 1).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outer.step()  # it is said once


@pytest.mark.parametrize("gradients", KINDS)
def test_what_distribute_returned_must_be_kept(gradients: str) -> None:
    model = net()
    wrapped = torch.optim.SGD(model.parameters(), 0.1)
    distributed(model, gradients=gradients, optimizer=wrapped)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    loss_of(model, 0).backward()
    with pytest.raises(UsageError, match=r"SGD\.step\(\) was called by itself.*\(keep it\)"):
        wrapped.step()
    optimizer = distributed(model, gradients=gradients, optimizer=wrapped)
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.close()
    loss_of(model, 0).backward()
    wrapped.step()
    copy.deepcopy(wrapped)


def test_a_gradient_of_another_dtype_than_its_parameter() -> None:
    model = net().bfloat16()
    if not hasattr(model[0].weight, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    model[0].weight.grad_dtype = torch.float32
    with pytest.raises(
        ConfigError, match=r"model: '0\.weight' has grad_dtype torch\.float32; set it to torch\.bfloat16"
    ):
        distributed(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("where", ["in the object", "in the class"])
def test_a_step_that_somebody_wrapped_finds_all_averages(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """functools.wraps gives it the name, the module and the attributes of torch's own. Here it clips."""
    bare = type(torch.optim.SGD(net().parameters(), 0.1)).step  # the first of a class wraps it, too

    @wraps(bare)
    def clipping(self: torch.optim.SGD) -> None:
        nn.utils.clip_grad_norm_([one for group in self.param_groups for one in group["params"]], 0.01)
        bare(self)

    def train(distribute: bool) -> nn.Module:
        model = net()
        optimizer: Any = torch.optim.SGD(model.parameters(), 0.1)
        if where == "in the object":
            optimizer.step = clipping.__get__(optimizer)
        if distribute:
            with pytest.warns(UserWarning, match=r"SGD is not known to update each parameter by itself"):
                optimizer = distributed(model, optimizer=optimizer)
        loss_of(model, 0).backward()
        optimizer.step()
        return model

    if where == "in the class":
        monkeypatch.setattr(torch.optim.SGD, "step", clipping)
    assert all(map(torch.equal, train(True).parameters(), train(False).parameters()))


class Mixed(nn.Module):
    """A layer in float32, and one in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(100, 100), nn.Linear(100, 100, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).bfloat16()).float()


def test_adafactor_takes_the_eps_of_the_first_dtype_for_all() -> None:
    """Torch's own does, if it is given none: a part of a step by itself would take another."""
    model, plain = Mixed(), Mixed()
    plain.load_state_dict(model.state_dict())
    kind = partial(torch.optim.Adafactor, lr=0.1)
    with pytest.raises(ConfigError, match=r"in_backward.* Adafactor.* is not known to update each parameter"):
        distributed(model, optimizer=kind(model.parameters()), update="in_backward")
    with pytest.warns(UserWarning, match=r"Adafactor is not known to update each parameter by itself, so all aver"):
        ours = distributed(model, optimizer=kind(model.parameters()))
    for one, optimizer in (model, ours), (plain, kind(plain.parameters())):
        for seed in range(3):
            optimizer.zero_grad()
            one(torch.randn(4, 100, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
            optimizer.step()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
