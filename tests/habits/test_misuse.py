"""What users do by mistake: each is answered with the cure, none changes anything silently."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.sgd import sgd

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from resireduce.grouping import Grouping, find_groups
from tests.threads import LocalWorld
from tests.worlds import Net, distributed, loss_of, same, seeded


def loss(model: nn.Module) -> torch.Tensor:
    return loss_of(model, torch.Generator().manual_seed(0))


def test_passes_that_are_left_over_and_dropped() -> None:
    """As by a trainer at the end of an epoch: streamed ones are in residuals; kept ones leave no trace."""
    model = seeded(Net)
    optimizer = distributed(model)
    with optimizer.no_sync():
        loss(model).backward()
    with pytest.raises(UsageError, match="left over at the end of an epoch: gradients='kept'"):
        optimizer.zero_grad()
    models = [seeded(Net), seeded(Net)]
    for model, drops in zip(models, (False, True), strict=True):
        optimizer = distributed(model, gradients="kept")
        for _ in range(3):
            if drops:
                with optimizer.no_sync():
                    (5 * loss(model)).backward()
                optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same(*models)


def test_another_optimizer_in_the_place_of_the_wrapped_one() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    with pytest.raises(UsageError, match=r"^wrapped: another optimizer .* distribute the other, and give it what was"):
        optimizer.wrapped = torch.optim.SGD(model.parameters(), 0.1)
    loss(model).backward()
    optimizer.step()


def test_a_pass_after_one_that_failed_half_way() -> None:
    """As when a trainer tries a smaller batch after it ran out of memory: the error names that."""
    model = seeded(Net)
    wrapped = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = resireduce.distribute(model, wrapped, "baseline", backend="local")

    def fail(_: torch.Tensor) -> None:
        raise MemoryError

    first = next(iter(model.parameters())).register_hook(fail)
    with pytest.raises(MemoryError):
        loss(model).backward()
    first.remove()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(UsageError, match=r"did not come to its end.*from a checkpoint"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    optimizer.close()
    optimizer = resireduce.distribute(model, wrapped, "baseline", backend="local")
    first = next(iter(model.parameters())).register_hook(fail)
    with pytest.raises(MemoryError):
        loss(model).backward()
    first.remove()
    with pytest.raises(UsageError, match=r"a second backward\(\).*failed half-way, as for want of memory.*close\(\)"):
        loss(model).backward()
    optimizer.close()
    optimizer = resireduce.distribute(model, wrapped, "baseline", backend="local")
    loss(model).backward()
    optimizer.step()
    with pytest.raises(UsageError) as told:
        for _ in range(2):
            loss(model).backward()
    assert "failed half-way" not in str(told.value)


def test_kept_gradients_may_be_changed_where_they_only_add_up() -> None:
    model = seeded(Net)
    optimizer = distributed(model, gradients="kept")
    with optimizer.no_sync():
        loss(model).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    loss(model).backward()
    optimizer.step()


def test_gradients_that_are_dropped_between_two_passes() -> None:
    model = nn.ModuleList([nn.Linear(120, 120), nn.Linear(120, 120)])
    optimizer = distributed(model)
    with optimizer.no_sync():
        model[0](torch.ones(2, 120)).sum().backward()
    model.zero_grad()
    model[1](torch.ones(2, 120)).sum().backward()
    with pytest.raises(UsageError, match=r"'0\.(weight|bias)' was dropped between two backward passes"):
        optimizer.step()


def test_no_sync_within_no_sync() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    with optimizer.no_sync():
        with optimizer.no_sync():
            loss(model).backward()
        loss(model).backward()
        model.head.bias.grad.norm()  # still within the outer one
    loss(model).backward()
    with pytest.raises(UsageError, match=r"\.grad was used \(norm\)"):
        model.head.bias.grad.norm()
    optimizer.step()


def test_sparse_gradients() -> None:
    model = nn.Embedding(200, 100, sparse=True)
    optimizer = distributed(model)
    with pytest.raises(UsageError, match=r"'weight' is sparse: make its layer with sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()
    assert optimizer.steps == 0


def test_after_a_nan_nothing_goes_on() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    (loss(model) * torch.inf).backward()
    with pytest.raises(NonFiniteGradient):
        optimizer.step()
    for call in (optimizer.zero_grad, optimizer.step, lambda: loss(model).backward()):
        with pytest.raises(UsageError, match="from a checkpoint"):
            call()


@pytest.mark.parametrize("bad", range(3))
def test_a_nan_in_any_pass_of_a_step(bad: int) -> None:
    model = seeded(Net)
    optimizer = distributed(model, backward_passes_per_step=3)
    for number in range(3):
        (loss(model) * (torch.nan if number == bad else 1.0)).backward()
    with pytest.raises(NonFiniteGradient):
        optimizer.step()


def test_a_gradient_from_before_is_not_taken_for_an_average() -> None:
    model = nn.ModuleList([nn.Linear(120, 120), nn.Linear(120, 120)])
    model[1](torch.ones(2, 120)).sum().backward()
    before = model[1].weight.clone()
    optimizer = distributed(model)
    model[0](torch.ones(2, 120)).sum().backward()
    optimizer.step()
    assert torch.equal(model[1].weight, before)


def test_groups_are_found_among_what_is_trained() -> None:
    model = seeded(Net)
    whole = find_groups(model)
    model.blocks[0].requires_grad_(False)
    optimizer = distributed(model, scheme="w+2d")
    grouped = {name for group in find_groups(model).groups for name in group}
    assert grouped == {name for group in whole.groups for name in group if not name.startswith("blocks.0.")}
    assert all("blocks.0." not in name for name in optimizer.residual_state_dict())
    half = seeded(Net)
    wrapped = torch.optim.SGD([*half.first.parameters(), *half.blocks[0].parameters()], 0.1)
    with pytest.warns(UserWarning, match="saves nothing"):
        resireduce.distribute(half, wrapped, "w", backend="local")


def test_groups_by_pattern_and_tensors_to_send_dense() -> None:
    model = seeded(Net)
    groups = {"groups": ["blocks.*.up.weight"], "specific": ["blocks.0.down.weight"]}
    optimizer = distributed(model, scheme="w", groups=groups, dense=["first.*"])
    assert sorted(optimizer.residual_state_dict()) == [
        *(f"full.blocks.{i}.down.weight" for i in range(3)),
        "members.blocks.0.up.weight",
        "rank",
        "steps",
        "weighted.blocks.0.up.weight",
        "world_size",
    ]
    with pytest.raises(ConfigError, match=r"groups: .*matches 'first\.weight'"):
        distributed(seeded(Net), groups={"specific": ["first.weight"]}, dense=["first.*"])


def test_a_scheme_that_saves_nothing_here_says_so(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(UserWarning, match=r"scheme 'w\+2d' saves nothing in this model.*Grouping"):
        distributed(nn.Linear(120, 120), scheme="w+2d")
    recwarn.clear()
    for scheme in ("baseline", "none"):
        distributed(nn.Linear(120, 120), scheme=scheme).close()
    groups = Grouping(groups=(("blocks.0.up.weight", "blocks.1.up.weight"),))
    distributed(seeded(Net), scheme="w", groups=groups).close()
    assert not recwarn.list


@pytest.mark.parametrize("arguments", [(Net, None), (None, None)])
def test_arguments_of_another_type(arguments: tuple[object, object]) -> None:
    with pytest.raises(ConfigError, match=r"model: the (class Net|object of type NoneType) is not allowed; give"):
        resireduce.distribute(*arguments, backend="local")  # type: ignore[arg-type]


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


def test_an_error_after_which_a_trainer_moves_the_model_is_named() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    loss(model).backward()
    try:
        loss(model).backward()
    except UsageError:
        with pytest.raises(UsageError, match=r"\.grad was used \(half\)") as told:
            model.half()
        assert "a second backward" in str(told.value.__context__), "which Python shows before it"
    with pytest.raises(UsageError, match=r"\.grad was used \(half\).*distribute that one$"):
        model.half()
    optimizer.close()


@pytest.mark.parametrize("move", [nn.Module.cpu, lambda model: model.to("cpu"), lambda model: model.to(torch.float32)])
def test_a_model_may_be_moved_to_where_it_is_before_step(move: Callable[[nn.Module], Any]) -> None:
    model, moved = seeded(Net), seeded(Net)
    for each, act in ((model, None), (moved, move)):
        optimizer = distributed(each)
        loss(each).backward()
        if act is not None:
            act(each)
            with pytest.raises(UsageError, match=r"\.grad was used \(norm\)"):
                each.head.weight.grad.cpu().norm()
            with pytest.raises(UsageError, match=r"\.grad was used \(norm\)"):
                each.head.weight.grad.to("cpu").norm()
        optimizer.step()
        optimizer.close()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), moved.parameters(), strict=True))


def test_a_guard_takes_the_memory_of_no_gradient() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    loss(model).backward()
    with pytest.raises(UsageError, match=r"\.grad was used \(data\)"):
        model.head.weight.grad.data = torch.zeros_like(model.head.weight)
    optimizer.close()


def test_a_setting_that_a_later_tensor_refuses_leaves_the_model_as_it_was() -> None:
    model = seeded(Net).double()
    model.blocks.float()
    loss = sum(parameter.double().square().sum() for parameter in model.parameters())
    loss.backward()
    with pytest.raises(ConfigError, match="residual_dtype"):
        distributed(model, residual_dtype="float64")
    assert all(parameter.grad is not None for parameter in model.parameters())
    distributed(model)


class Unused(nn.Module):
    """What is expected last has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(150, 120), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_clipping_is_an_error_whichever_gradient_is_the_last() -> None:
    model = Unused()
    optimizer = distributed(model)
    for _ in range(3):
        model(torch.ones(2, 150)).sum().backward()
        with pytest.raises(UsageError, match="have been streamed"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def test_gradients_that_are_dropped_before_the_step() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    loss(model).backward()
    model.zero_grad()
    with pytest.raises(UsageError, match=r"replaced, or dropped by model\.zero_grad\(\), between backward"):
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


def test_a_model_converted_between_backward_and_step_is_refused() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    loss(model).backward()
    model.to(torch.float64)
    with pytest.raises(UsageError, match=r"float64 on cpu now .*convert or move the model before"):
        optimizer.step()
    optimizer.close()
