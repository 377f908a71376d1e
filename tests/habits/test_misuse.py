"""What users do by mistake, or later: each is answered with the cure, none changes anything silently."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.sgd import sgd

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from resireduce.grouping import Grouping, find_groups
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loss_of, same, seeded


def loss(model: nn.Module) -> torch.Tensor:
    return loss_of(model, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (False, r"did not come to its end.*from a checkpoint"),
        (True, r"a second backward\(\).*failed half-way, as for want of memory.*close\(\)"),
    ],
)
def test_a_pass_that_failed_half_way(again: bool, said: str) -> None:
    """As when a trainer tries a smaller batch after it ran out of memory: the error names that."""
    model = seeded(Net)
    optimizer = distributed(model)

    def fail(_: torch.Tensor) -> None:
        raise MemoryError

    first = next(iter(model.parameters())).register_hook(fail)
    with pytest.raises(MemoryError):
        loss(model).backward()
    first.remove()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(UsageError, match=said):
        loss(model).backward() if again else optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    optimizer.close()


@pytest.mark.parametrize("options", [{}, {"compressor": "none"}], ids=str)
def test_a_second_backward_pass_that_makes_a_graph_of_gradients(options: dict[str, Any]) -> None:
    model = seeded(Net)
    optimizer = distributed(model, **options)
    loss(model).backward(create_graph=True)
    with pytest.raises(UsageError, match=r"a second backward\(\) reached 'head\.(bias|weight)' before step\(\)"):
        loss(model).backward(create_graph=True)
    optimizer.close()


def test_an_average_has_no_graph_of_the_gradient_that_it_replaces() -> None:
    """An optimizer that differentiates gradients, as AdaHessian, would find the curvature of this rank alone."""
    model = seeded(Net)
    optimizer = distributed(model, gradients="kept")
    loss(model).backward(create_graph=True)
    optimizer.step()
    assert not any(parameter.grad.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("gradients", ["streamed", "kept"])
def test_sparse_gradients(gradients: str) -> None:
    model = nn.Embedding(200, 100, sparse=True)
    optimizer = distributed(model, gradients=gradients)
    with pytest.raises(UsageError, match=r"'weight' is sparse: make its layer with sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()
    assert optimizer.steps == 0


@pytest.mark.parametrize("bad", range(3))
def test_a_nan_in_any_pass_of_a_step(bad: int) -> None:
    model = seeded(Net)
    optimizer = distributed(model, backward_passes_per_step=3)
    for number in range(3):
        (loss(model) * (torch.nan if number == bad else 1.0)).backward()
    with pytest.raises(NonFiniteGradient):
        optimizer.step()


def test_groups_are_found_among_what_is_trained() -> None:
    model = seeded(Net)
    whole = find_groups(model)
    model.blocks[0].requires_grad_(False)
    optimizer = distributed(model, scheme="w+2d")
    grouped = {name for group in find_groups(model).groups for name in group}
    assert grouped == {name for group in whole.groups for name in group if not name.startswith("blocks.0.")}
    assert all("blocks.0." not in name for name in optimizer.residual_state_dict())


def test_a_scheme_that_saves_nothing_here_says_so(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(UserWarning, match=r"scheme 'w\+2d' saves nothing in this model.*Grouping"):
        distributed(nn.Linear(120, 120), scheme="w+2d")
    recwarn.clear()
    for scheme in ("baseline", "none"):
        distributed(nn.Linear(120, 120), scheme=scheme).close()
    groups = Grouping(groups=(("blocks.0.up.weight", "blocks.1.up.weight"),))
    distributed(seeded(Net), scheme="w", groups=groups).close()
    assert not recwarn.list


SGD = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
BY_HAND = {
    "functional": lambda held, grads: sgd(held, grads, [None] * len(held), **SGD),
    "foreach": lambda held, grads: sgd(held, grads, [None] * len(held), foreach=True, **SGD),
    "fused": lambda held, grads: torch._fused_sgd_(held, grads, [], is_first_step=True, **SGD),
    "data": lambda held, grads: [one.data.sub_(grad.data, alpha=0.1) for one, grad in zip(held, grads, strict=True)],
    "an optimizer": lambda held, _: torch.optim.Adam(held, 0.1).step(),
}


@pytest.mark.parametrize("update", BY_HAND)
@pytest.mark.parametrize("options", [{}, {"update": "in_backward", "compressor": "none"}])
def test_streamed_gradients_update_nothing_by_hand(options: dict[str, object], update: str) -> None:
    model = seeded(Net)
    optimizer = distributed(model, **options)
    loss(model).backward()
    held = list(model.parameters())
    before = [one.detach().clone() for one in held]
    with (
        pytest.raises(UsageError, match=r"by another optimizer, or by its functional form, distribute that one"),
        torch.no_grad(),
    ):
        BY_HAND[update](held, [one.grad for one in held])
    assert all(map(torch.equal, before, held))
    optimizer.step()


def test_a_streamed_gradient_gives_nothing_to_a_tensor_of_the_script() -> None:
    """A model that is moved may ask for less of it."""
    model = seeded(Net)
    optimizer = distributed(model)
    loss(model).backward()
    guard, own = model.head.weight.grad, torch.ones(model.head.weight.shape)
    for act in (lambda: own.to(guard), lambda: own.copy_(guard)):
        with pytest.raises(UsageError, match="gradients have been streamed"):
            act()
    assert guard.to(torch.float64) is guard and own.eq(1).all()
    optimizer.step()


def test_a_setting_that_is_refused_changes_no_rank() -> None:
    models = [seeded(Net, seed=rank).bfloat16() for rank in range(2)]

    def refused(communicator: Communicator) -> bool:
        model = copy.deepcopy(models[communicator.rank])
        with pytest.raises(ConfigError, match="residual_dtype"):
            distributed(model, backend=communicator, residual_dtype="float64")
        return same(model, models[communicator.rank])

    assert all(LocalWorld(2).run(refused))


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ({"compressor": "fp16"}, r"compressor: Fp16\(.* on rank 1, TopK\(.*density=0.01\) on rank 0; give all ranks"),
        ({"density": 0.1}, r"compressor: TopK\(.*density=0.1\) on rank 1, TopK\(.*density=0.01\) on rank 0"),
        (
            {"width": 36},
            r"parameter number 0: first.weight \(36, 600\) torch.float32 on rank 1, first.weight \(72,",
        ),
    ],
)
def test_ranks_that_were_given_different_settings(one: dict[str, object], message: str) -> None:
    models = [seeded(Net), seeded(lambda: Net(width=one.get("width", 72)))]  # type: ignore[arg-type]
    options = {key: value for key, value in one.items() if key != "width"}

    def refused(communicator: Communicator) -> str:
        with pytest.raises(ConfigError) as raised:
            distributed(models[communicator.rank], backend=communicator, **(options if communicator.rank else {}))
        return str(raised.value)

    first, second = LocalWorld(2).run(refused)
    assert first.startswith("settings or model differ between ranks")
    assert re.match(message, second)
