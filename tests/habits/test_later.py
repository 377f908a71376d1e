"""What happens to the optimizer after training has begun, or differs between ranks where nobody looks."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import UsageError
from tests.threads import LocalWorld
from tests.worlds import Net, loss_of, same, seeded


def distributed(model: nn.Module, **options: object) -> DistributedOptimizer:
    given = {"scheme": "baseline", "compressor": "none", "backend": "local", **options}
    return resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), **given)  # type: ignore[arg-type]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    optimizer.zero_grad()
    loss_of(model, torch.Generator().manual_seed(seed)).backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"gradients": "kept"}])
def test_a_step_that_an_exception_has_ended_is_not_gone_on_from(options: dict[str, object]) -> None:
    model = seeded(Net)
    optimizer = distributed(model, **options)

    def fail(*_: object) -> None:
        raise FloatingPointError

    hook = optimizer.register_step_post_hook(fail)
    with pytest.raises(FloatingPointError):
        step(model, optimizer)
    hook.remove()
    for parameter in model.parameters():
        parameter.grad = None
    with pytest.raises(UsageError, match="an earlier step failed"):
        step(model, optimizer)


def test_a_hook_that_comes_when_the_backward_pass_has_updated() -> None:
    model = seeded(lambda: nn.Sequential(*[nn.Linear(130, 130) for _ in range(6)]))
    optimizer = distributed(model, update="in_backward")
    model(torch.ones(2, 130)).sum().backward()
    optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(UsageError, match=r"a hook before the step was registered.*update='in_step'"):
        optimizer.step()


def decay(parameter: nn.Parameter) -> None:
    with torch.no_grad():
        parameter.mul_(0.9)


def decay_by_hand(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data * 0.9


@pytest.mark.parametrize("change", [decay, decay_by_hand])
def test_parameters_that_are_changed_when_the_backward_pass_has_updated_them(change: Callable[..., None]) -> None:
    """Those that it has not updated yet are changed before their update, as in plain training."""
    build = lambda: nn.Sequential(*[nn.Linear(130, 130) for _ in range(6)])  # noqa: E731
    model, plain = seeded(build), seeded(build)
    optimizer, other = distributed(model, update="in_backward"), torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(2):
        for trained, one in ((model, optimizer), (plain, other)):
            one.zero_grad()
            trained(torch.ones(2, 130)).sum().backward()
            change(trained[0].bias)
            one.step()
    assert same(model, plain)
    optimizer.zero_grad()
    model(torch.ones(2, 130)).sum().backward()
    change(model[5].weight)
    with pytest.raises(
        UsageError, match=r"'5\.weight' was changed between backward\(\) and step\(\).*update='in_step'"
    ):
        optimizer.step()


def let_go_of_momentum(optimizer: DistributedOptimizer, _: object) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


def go_back(optimizer: DistributedOptimizer, saved: dict[str, Any]) -> None:
    optimizer.load_state_dict(copy.deepcopy(saved))


@pytest.mark.parametrize("change", [let_go_of_momentum, go_back])
def test_a_state_that_is_changed_when_the_backward_pass_has_updated_it(change: Callable[..., None]) -> None:
    model = seeded(lambda: nn.Sequential(*[nn.Linear(130, 130) for _ in range(6)]))
    wrapped = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = resireduce.distribute(model, wrapped, "none", compressor="none", backend="local", update="in_backward")
    model(torch.ones(2, 130)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    change(optimizer, saved)
    model(torch.ones(2, 130)).sum().backward()
    with pytest.raises(UsageError, match=r"state_dict\(\) between backward\(\) and step\(\)"):
        optimizer.state_dict()
    optimizer.step()
    model(torch.ones(2, 130)).sum().backward()
    change(optimizer, saved)
    with pytest.raises(UsageError, match=r"the optimizer's state of '5\.\w+' was changed between.*update='in_step'"):
        optimizer.step()


def test_momentum_that_comes_later_beside_momentum_that_is_corrected() -> None:
    model = seeded(Net)
    optimizer = distributed(model, compressor="dgc-momentum")
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    with pytest.raises(UsageError, match=r"the optimizer has momentum now.*cycle_momentum=False"):
        step(model, optimizer)


def test_parameters_that_take_the_place_of_others() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    model.head = nn.Linear(72, 10)
    optimizer.param_groups[0]["params"][-4:-2] = list(model.head.parameters())
    with pytest.raises(UsageError, match=r"parameters were added to the optimizer, removed, or replaced"):
        step(model, optimizer)


def test_a_parameter_that_has_grown() -> None:
    model = seeded(lambda: nn.Linear(120, 120, bias=False))
    optimizer = distributed(model, gradients="kept")
    model.weight.data = torch.zeros(130, 120)
    model.weight.grad = torch.ones(130, 120)
    with pytest.raises(UsageError, match=r"shape \(120, 120\), now \(130, 120\)"):
        optimizer.step()


def on_two(work: Callable[[Communicator], object]) -> list[object]:
    return LocalWorld(2).run(work)


def test_a_layer_that_some_ranks_use_beside_momentum_that_is_corrected() -> None:
    def rank(communicator: Communicator) -> object:
        model = nn.ModuleList([nn.Linear(120, 120), nn.Linear(120, 120)])
        optimizer = distributed(model, backend=communicator, compressor="dgc-momentum")
        model[communicator.rank](torch.ones(2, 120)).sum().backward()
        with pytest.raises(UsageError, match=r"'0\.weight' had a gradient on some ranks and none on others"):
            optimizer.step()
        return True

    assert on_two(rank) == [True, True]


class Renamed(torch.optim.AdamW):
    """A subclass whose step is that of its base class."""

    step_is_separable = True

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()


@pytest.mark.parametrize("update", ["in_step", "in_backward"])
def test_a_step_that_calls_that_of_its_base_class(update: str) -> None:
    models = []
    for kind in (torch.optim.AdamW, Renamed):  # the first object of a class gives its step what runs hooks
        model = seeded(Net)
        wrapped = kind(model.parameters(), 0.01)
        optimizer = resireduce.distribute(model, wrapped, compressor="none", backend="local", update=update)
        for seed in range(3):
            step(model, optimizer, seed)
        models.append(model)
    assert same(*models)
