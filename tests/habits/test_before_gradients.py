"""What is known of a gradient before autograd adds it to `.grad`: what lies there, and whether anything comes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.errors import UsageError
from tests.worlds import same

DENSE = {"compressor": "none"}
EARLY = [{}, DENSE]


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(104, 104), nn.ReLU(), nn.Linear(104, 10))


def loss_of(model: nn.Module, seed: int = 1) -> Tensor:
    return nn.functional.cross_entropy(
        model(torch.randn(8, 104, generator=torch.Generator().manual_seed(seed))), TARGET
    )


TARGET = torch.arange(8)


def distributed(model: nn.Module, **options: Any) -> Any:
    wrapped = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1, momentum=0.9)
    return resireduce.distribute(model, wrapped, backend="local", **{"scheme": "baseline", "density": 1.0, **options})


@pytest.mark.parametrize("options", EARLY, ids=str)
@pytest.mark.parametrize("name", ["2.bias", "0.weight", "all", "the only one"])
def test_a_gradient_that_is_laid_before_the_backward_pass(name: str, options: dict[str, Any]) -> None:
    """Also that of the parameter which autograd reaches first, and again after a step."""
    model = net()
    if name == "the only one":
        model.requires_grad_(False)[0].weight.requires_grad_(True)
    parameters = {key: one for key, one in model.named_parameters() if one.requires_grad}
    optimizer = distributed(model, **options)
    for step in range(2):
        optimizer.zero_grad()
        if step:
            for one in parameters.values() if name in ("all", "the only one") else [parameters[name]]:
                one.grad = torch.zeros(2, *one.shape)[1]
            with pytest.raises(UsageError, match=r"was in \.grad before backward\(\).*gradients='kept'"):
                loss_of(model).backward()
            return
        loss_of(model).backward()
        optimizer.step()


@pytest.mark.parametrize("clears", ["never", "to zero", "the model's to zero", "to None"])
def test_averages_of_the_last_step_may_be_added_to(clears: str) -> None:
    """As in plain training, where `.grad` still has the gradient of the last step."""
    clear: dict[str, Callable[[nn.Module, Any], None]] = {
        "never": lambda model, optimizer: None,
        "to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        "the model's to zero": lambda model, optimizer: model.zero_grad(set_to_none=False),
        "to None": lambda model, optimizer: optimizer.zero_grad(),
    }
    model, plain = net(), net()
    optimizer = distributed(model, gradients="kept")
    other = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        for one, by in ((model, optimizer), (plain, other)):
            clear[clears](one, by)
            loss_of(one, step).backward()
            by.step()
    assert same(model, plain)


class Maybe(torch.autograd.Function):
    """A product whose weight has no gradient, not even zeros, where it is not used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_used: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_used = is_used
        return x @ weight if is_used else x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (grad @ weight.t(), x.t() @ grad, None) if ctx.is_used else (grad, None, None)


@pytest.mark.parametrize("options", [{}, {"scheme": "w"}, DENSE, {"gradients": "kept"}], ids=str)
@pytest.mark.parametrize("used", [(True, False), (False, True), (False, False), (False,)], ids=str)
def test_a_function_that_returns_no_gradient_in_some_pass(used: tuple[bool, ...], options: dict[str, Any]) -> None:
    def train(model: nn.Module, optimizer: Any) -> nn.Module:
        x = torch.randn(8, 104, generator=torch.Generator().manual_seed(2))
        for _ in range(2):
            optimizer.zero_grad()
            for number, is_used in enumerate(used):
                hidden = Maybe.apply(x, model.extra, is_used)
                if number < len(used) - 1 and optimizer is not plain_optimizer:
                    with optimizer.no_sync():
                        model(hidden).square().mean().backward()
                else:
                    model(hidden).square().mean().backward()
            optimizer.step()
        return model

    models = [net(), net()]
    for model in models:
        model.extra = nn.Parameter(torch.eye(104).mul(0.5))
        model.forward = lambda x, model=model: model[2](model[1](model[0](x)))
    plain_optimizer = torch.optim.SGD(models[0].parameters(), 0.1, momentum=0.9)
    plain, trained = train(models[0], plain_optimizer), train(models[1], distributed(models[1], **options))
    for one, other in zip(plain.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert torch.equal(trained.extra, torch.eye(104).mul(0.5)) != any(used)


def test_a_model_that_was_converted_and_converted_back_between_two_steps() -> None:
    model, plain = net(), net()
    optimizer = distributed(model)
    other = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for step in range(3):
        for one in (model, plain):
            one.bfloat16().float()
        other.zero_grad()
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss_of(model, step).backward()
        loss_of(model, step + 5).backward()
        optimizer.step()
        (loss_of(plain, step) + loss_of(plain, step + 5)).backward()
        other.step()
    for one, two in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{}, DENSE], ids=str)
def test_a_second_backward_pass_that_makes_a_graph_of_gradients(options: dict[str, Any]) -> None:
    model = net()
    optimizer = distributed(model, **options)
    loss_of(model).backward(create_graph=True)
    with pytest.raises(UsageError, match=r"a second backward\(\) reached '2\.(bias|weight)' before step\(\)"):
        loss_of(model).backward(create_graph=True)
    optimizer.close()


def test_an_average_has_no_graph_of_the_gradient_that_it_replaces() -> None:
    """An optimizer that differentiates gradients, as AdaHessian, would find the curvature of this rank alone."""
    model = net()
    optimizer = distributed(model, gradients="kept")
    loss_of(model).backward(create_graph=True)
    optimizer.step()
    assert not any(parameter.grad.requires_grad for parameter in model.parameters())
