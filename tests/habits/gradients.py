"""What people do with `.grad`."""

import torch
from torch import Tensor, nn

from resireduce.errors import NonFiniteGradient
from tests.habits.script import Refused, Script, habit

STREAMED = Refused(r"gradients have been streamed")
DROPPED = Refused(r"(dropped|replaced|changed|zero_grad\(\)).*between backward\(\) and step\(\)|have been streamed")


def between(script: Script, act: object, **options: object) -> nn.Module:
    """Three steps, with `act(model)` between backward() and step()."""
    model = script.net()
    optimizer = script.sgd(model, **options)
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        act(model)  # type: ignore[operator]
        optimizer.step()
    return model


@habit(streamed=Refused(r"max_grad_norm"))
def clipping_by_the_norm(script: Script) -> nn.Module:
    """clip_grad_norm_ between backward() and step(): of this rank's own gradient."""
    return between(script, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


@habit(streamed=STREAMED)
def clipping_by_value(script: Script) -> nn.Module:
    """clip_grad_value_ between backward() and step(); without compression, since it makes many values equal."""
    return between(script, lambda model: nn.utils.clip_grad_value_(model.parameters(), 1e-3), compressor="none")


@habit()
def clipping_by_the_option(script: Script) -> list[object]:
    """max_grad_norm, and its norm in the log."""
    norms, model = [], script.net()
    optimizer = script.sgd(model, max_grad_norm=0.05)
    for step in range(3):
        script.train(model, optimizer, range(step, step + 1))
        norms.append(optimizer.grad_norm)
    return [model, norms]


@habit()
def the_norm_is_only_logged(script: Script) -> list[object]:
    """max_grad_norm=inf."""
    model = script.net()
    optimizer = script.sgd(model, max_grad_norm=float("inf"))
    script.train(model, optimizer)
    return [model, optimizer.grad_norm]


@habit(streamed=STREAMED)
def norms_are_logged_by_hand(script: Script) -> list[object]:
    """Of every parameter, between backward() and step()."""
    log: list[Tensor] = []
    model = between(script, lambda model: log.extend(p.grad.norm() for p in model.parameters()))
    return [model, log]


@habit(streamed=STREAMED)
def gradients_are_copied_for_a_histogram(script: Script) -> list[object]:
    """p.grad.detach().clone(), as loggers do."""
    log: list[Tensor] = []
    model = between(script, lambda model: log.extend(p.grad.detach().clone() for p in model.parameters()))
    return [model, log]


@habit()
def parameters_without_gradient_are_listed(script: Script) -> list[object]:
    """A check for unused layers: `p.grad is None`."""
    unused: list[int] = []
    model = between(script, lambda model: unused.append(sum(p.grad is None for p in model.parameters())))
    return [model, unused]


@habit(streamed=DROPPED)
def gradients_are_set_to_none(script: Script) -> nn.Module:
    """p.grad = None for all, before step(): nothing is trained in that step."""

    def drop(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = None

    return between(script, drop)


@habit(streamed=DROPPED)
def one_gradient_is_set_to_none(script: Script) -> nn.Module:
    """To leave a layer as it is in this step; the layer is a large one."""

    def drop(model: nn.Module) -> None:
        model.blocks[0].wide.weight.grad = None  # type: ignore[union-attr]

    return between(script, drop)


@habit(streamed=DROPPED)
def one_small_gradient_is_set_to_none(script: Script) -> nn.Module:
    """The same with a tensor that is not compressed."""

    def drop(model: nn.Module) -> None:
        model.head.bias.grad = None  # type: ignore[union-attr]

    return between(script, drop)


@habit(streamed=DROPPED)
def the_model_s_zero_grad_before_the_step(script: Script) -> nn.Module:
    """model.zero_grad() in the wrong place: nothing is trained."""
    return between(script, lambda model: model.zero_grad())


@habit(streamed=STREAMED)
def noise_is_added(script: Script) -> nn.Module:
    """p.grad += noise."""

    def noise(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(script.rank)
        for parameter in model.parameters():
            parameter.grad += 0.01 * torch.randn(parameter.shape, generator=generator)

    return between(script, noise)


@habit(streamed=STREAMED)
def gradients_are_scaled_in_place(script: Script) -> nn.Module:
    """p.grad.mul_(0.5), or div_ by a number of tokens."""
    return between(script, lambda model: [p.grad.mul_(0.5) for p in model.parameters()])


@habit(streamed=STREAMED)
def gradients_are_zeroed_through_data(script: Script) -> nn.Module:
    """p.grad.data.zero_(), which leaves no trace in the version of the tensor."""
    return between(script, lambda model: [p.grad.data.zero_() for p in model.parameters()])


@habit(streamed=STREAMED)
def gradients_are_replaced_by_a_product(script: Script) -> nn.Module:
    """p.grad = p.grad * 0."""

    def zero(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad * 0

    return between(script, zero)


@habit(streamed=DROPPED)
def gradients_are_replaced_after_backward(script: Script) -> nn.Module:
    """p.grad = other, a tensor from elsewhere."""

    def replace(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * (0.1 + script.rank)

    return between(script, replace)


@habit(streamed=DROPPED)
def one_gradient_is_replaced_after_backward(script: Script) -> nn.Module:
    """Of the head alone: a mask, or a natural gradient."""

    def replace(model: nn.Module) -> None:
        model.head.weight.grad = model.head.weight.detach() * (1 + script.rank)  # type: ignore[union-attr]

    return between(script, replace)


@habit(both=Refused(r"holds NaN or infinity", NonFiniteGradient))
def a_gradient_of_one_rank_is_nan(script: Script) -> nn.Module:
    """Of the last rank: no rank takes the step."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    if script.rank == script.ranks - 1:
        model.blocks[1].wide.weight.register_hook(lambda grad: grad * torch.nan)
    script.train(model, optimizer, 1)
    return model


@habit()
def hooks_on_parameters(script: Script) -> nn.Module:
    """register_hook to scale a layer's gradient, before and after the model is distributed."""
    model = script.net()
    model.blocks[0].wide.weight.register_hook(lambda grad: grad * 0.1)
    optimizer = script.sgd(model)
    model.head.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    script.train(model, optimizer)
    return model


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)  # type: ignore[union-attr]


@habit()
def hooks_after_accumulation_from_before(script: Script) -> nn.Module:
    """register_post_accumulate_grad_hook before the model is distributed: the gradient is still there."""
    model = script.net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.train(model, script.sgd(model))
    return model


@habit(streamed=STREAMED)
def hooks_after_accumulation_from_later(script: Script) -> nn.Module:
    """The same after it: streamed, the gradient has gone by then."""
    model = script.net()
    optimizer = script.sgd(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.train(model, optimizer)
    return model
