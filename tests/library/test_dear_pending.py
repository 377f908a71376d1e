"""DeAR: nobody sees a parameter whose update is still pending, whatever is done with it after the step."""

import copy
import threading
from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import UsageError
from tests.dear import Two, X, dear, small, walk
from tests.worlds import reloaded, seeded

LOOKS: dict[str, Callable[[Two, DistributedOptimizer], Any]] = {
    "state_dict of the model": lambda model, _: model.state_dict(),
    "state_dict of a part": lambda model, _: model.last.state_dict(),
    "state_dict of the optimizer": lambda _, optimizer: optimizer.state_dict(),
    "state_dict of the wrapped optimizer": lambda _, optimizer: optimizer.wrapped.state_dict(),
    "state of the optimizer": lambda _, optimizer: [*optimizer.state.values()],
    "data": lambda model, _: [p.data.clone() for p in model.parameters()],
    "numpy": lambda model, _: [p.detach().numpy().tolist() for p in model.parameters()],
    "norm": lambda model, _: [p.norm() for p in model.parameters()],
    "comparison": lambda model, _: [(p == seeded(Two).get_parameter(n)) for n, p in model.named_parameters()],
    "printed": lambda model, _: repr(model.first.weight),
    "vector": lambda model, _: nn.utils.parameters_to_vector(model.parameters()),
    "deepcopy": lambda model, _: copy.deepcopy(model).state_dict(),
    "deepcopy of a parameter": lambda model, _: (copy.deepcopy(model.scale), type(copy.deepcopy(model.scale))),
    "saved whole": lambda model, _: reloaded(model, weights_only=False).state_dict(),
    "saved parameter": lambda model, _: type(reloaded(model.first.weight, weights_only=False)),
    "forward": lambda model, _: model(X),
    "forward of a part": lambda model, _: model.last(X[:, :5]),
    "forward without its hooks": lambda model, _: model.last.forward(X[:, :5]),
    "evaluation": lambda model, _: evaluated(model),
    "inference alone": lambda model, _: torch.inference_mode()(lambda: model(X).clone())(),
    "inference": lambda model, _: inferred(model),
    "autocast": lambda model, _: in_half_precision(model),
    "functional call": lambda model, _: torch.func.functional_call(model, dict(model.named_parameters()), (X,)),
    "outside of its module": lambda model, _: nn.functional.linear(X, model.first.weight),
    "per-sample gradients": lambda model, _: torch.func.vmap(lambda x: x * model.scale)(X),
    "gradients of each sample": lambda model, _: of_each_sample(model),
    "gradient of an input": lambda model, _: torch.func.grad(lambda x: model(x).sum())(X),
    "tangent": lambda model, _: torch.func.jvp(model, (X,), (torch.ones_like(X),)),
    "Jacobians": lambda model, _: torch.func.vmap(torch.func.jacrev(model))(X),
    "converted": lambda model, _: model.double().state_dict(),
    "changed by hand": lambda model, _: (torch.no_grad()(model.scale.mul_)(2), model.scale.data)[1],
    "gradient": lambda model, _: [p.grad for p in model.parameters()],
    "norm of gradients": lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "zeroed gradients": lambda model, o: (o.zero_grad(set_to_none=False), [p.grad for p in model.parameters()])[1],
    "gradients let go by the model": lambda model, _: (model.zero_grad(), model.state_dict(), model.scale.grad),
    "flush": lambda model, optimizer: (optimizer.flush(), [raw(p) for p in model.parameters()])[1],
    "closed": lambda model, optimizer: (optimizer.close(), [raw(p) for p in model.parameters()])[1],
    "another thread": lambda model, _: in_a_thread(model),
}


def of_each_sample(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of each sample, as differential privacy needs them: transforms are given the parameters."""

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (x[None],)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(model.named_parameters()), X)


def raw(parameter: nn.Parameter) -> Tensor:
    """What lies in the memory of `parameter`, without any notice that it is used."""
    with torch._C.DisableTorchFunctionSubclass():
        return parameter.detach().clone()


def evaluated(model: nn.Module) -> Tensor:
    """The output in evaluation."""
    with torch.no_grad():
        return model.eval()(X)


def inferred(model: nn.Module) -> tuple[Tensor, Tensor]:
    """The output in inference, and then in training, with a gradient."""
    with torch.inference_mode():
        found = model(X).clone()
    model(X).sum().backward()
    return found, model(X)


def in_half_precision(model: nn.Module) -> Tensor:
    """The output with autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return model(X)


def in_a_thread(model: nn.Module) -> list[Tensor]:
    """The parameters as eight threads see them at once."""
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(nn.utils.parameters_to_vector(model.parameters()).detach()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def leaves(value: Any) -> list[Any]:
    """All that is in `value`, tensors as lists of numbers."""
    found, _ = torch.utils._pytree.tree_flatten(value)
    return [one.detach().double().tolist() if isinstance(one, Tensor) else one for one in found]


def assert_alike(act: Callable[[Two, DistributedOptimizer], Any], steps: int = 2) -> None:
    """What `act` returns after some steps is the same, whether averages come at once or in the next forward pass."""
    plain, late = (leaves(act(*small(merge, steps))) for merge in (None, "dear-1"))
    assert plain == late and plain


@pytest.mark.parametrize(("look", "between"), zip(LOOKS, cycle(["at once", "after zero_grad"]), strict=False))
def test_whoever_looks_sees_the_step_taken(look: str, between: str) -> None:
    def seen(model: Two, optimizer: DistributedOptimizer) -> Any:
        if between == "after zero_grad":
            optimizer.zero_grad()
        return LOOKS[look](model, optimizer)

    assert_alike(seen)


def test_nothing_is_updated_until_somebody_looks() -> None:
    plain, model = small(None)[0], small("dear-1")[0]
    assert not torch.equal(raw(model.scale), raw(plain.scale))


def test_a_fork_cannot_look() -> None:
    """What carries the averages is not in it. It says so, and does not wait."""
    model, optimizer = small("dear-1")
    with (
        patch("os.getpid", return_value=-1),
        pytest.raises(UsageError, match=r"call optimizer\.flush\(\) before it is"),
    ):
        model(X)
    optimizer.flush()
    with patch("os.getpid", return_value=-1):
        assert torch.equal(model(X), small(None)[0](X))


@pytest.mark.parametrize(
    "look", ["state_dict of the model", "forward of a part", "gradient", "changed by hand", "inference alone"]
)
def test_training_goes_on_as_before_whoever_looked(look: str) -> None:
    def end(model: Two, optimizer: DistributedOptimizer) -> Any:
        LOOKS[look](model, optimizer)
        walk(model, optimizer, 2)
        return model.state_dict()

    assert_alike(end)


def test_a_parameter_is_the_same_object_of_the_same_class_before_and_after() -> None:
    model, optimizer = small("dear-1")
    held = list(model.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in held)
    shapes = [(parameter.shape, parameter.dtype, parameter.requires_grad) for parameter in held]
    assert not torch.equal(raw(model.scale), raw(small(None)[0].scale)), "its shape tells nothing of its values"
    optimizer.flush()
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))
    assert {type(parameter) for parameter in held} == {nn.Parameter} and shapes[0] == ((6,), torch.float32, True)
    assert all(not vars(parameter) for parameter in held), "nothing is left behind"


def test_options_are_those_at_the_step_whatever_a_scheduler_makes_of_them() -> None:
    def end(model: Two, optimizer: DistributedOptimizer) -> Any:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6)
        rates = []
        for _ in range(5):
            walk(model, optimizer)
            schedule.step()
            rates.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]))
        assert len(set(rates)) == 5
        return model.state_dict(), rates

    assert_alike(end, steps=0)


def test_a_learning_rate_that_is_a_tensor_is_that_at_the_step() -> None:
    """Schedulers change it in place."""
    ends = []
    for merge in (None, "dear-1"):
        model = seeded(Two)
        wrapped = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), foreach=False)
        optimizer = dear(model, wrapped, merge=merge)
        schedule = torch.optim.lr_scheduler.ExponentialLR(wrapped, 0.1)
        for _ in range(3):
            walk(model, optimizer, 1)
            schedule.step()
        ends.append(leaves(model.state_dict()))
    assert ends[0] == ends[1]


def test_hooks_of_the_wrapped_optimizer_run_once_a_step_and_find_it_taken() -> None:
    def end(model: Two, optimizer: DistributedOptimizer) -> Any:
        seen: list[Tensor] = []
        optimizer.register_step_post_hook(
            lambda *_: seen.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        )
        walk(model, optimizer, 3)
        assert len(seen) == 3 and not any(torch.equal(one, other) for one, other in pairwise(seen))
        return seen

    assert_alike(end, steps=0)


def hook(optimizer: DistributedOptimizer) -> None:
    optimizer.register_step_pre_hook(lambda *_: None)


def replace_step(optimizer: DistributedOptimizer) -> None:
    optimizer.wrapped.step = partial(optimizer.wrapped.step)  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [hook, replace_step])
def test_what_a_hook_before_the_step_or_another_step_would_miss_is_refused(
    change: Callable[[DistributedOptimizer], None],
) -> None:
    _, optimizer = small("dear-1", steps=0)
    change(optimizer)
    with pytest.raises(UsageError, match=r"a hook before the step .* leave merge out"):
        optimizer.step()
    optimizer.close()


def test_a_state_that_is_loaded_takes_the_place_of_what_the_step_made() -> None:
    def end(model: Two, optimizer: DistributedOptimizer) -> Any:
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        model(X).square().mean().backward()
        optimizer.step()
        model.load_state_dict(states[0])
        optimizer.wrapped.load_state_dict(states[1])
        return model.state_dict(), optimizer.state_dict()

    assert_alike(end)


def test_an_optimizer_that_is_lost_leaves_the_last_step_taken() -> None:
    model, optimizer = small("dear-1")
    del optimizer
    assert leaves(model.state_dict()) == leaves(small(None)[0].state_dict())


def test_a_closed_optimizer_can_be_followed_by_another() -> None:
    ends = []
    for merge in (None, "dear-1"):
        model, optimizer = small(merge)
        optimizer.close()
        walk(model, dear(model, optimizer.wrapped, merge=merge))
        ends.append(leaves(model.state_dict()))
    assert ends[0] == ends[1]


def test_parameters_that_change_their_group_after_the_step() -> None:
    """Each is updated by the options of the group in which it was at the step."""

    def end(merge: str | None) -> Any:
        model = seeded(Two)
        groups = [
            {"params": [*model.first.parameters()], "lr": 0.1},
            {"params": [model.scale, *model.last.parameters()]},
        ]
        optimizer = dear(model, torch.optim.AdamW(groups, 0.01), merge=merge)
        for _ in range(4):
            walk(model, optimizer)
            one, other = optimizer.param_groups
            other["params"].append(one["params"].pop())
            one["params"].append(other["params"].pop(0))
        return leaves(model.state_dict())

    assert end("dear-1") == end(None)


def test_a_compiled_model_is_updated_in_the_step() -> None:
    def end(model: Two, optimizer: DistributedOptimizer) -> Any:
        walk(torch.compile(model, backend="eager", fullgraph=True), optimizer, 3)
        return [raw(parameter) for parameter in model.parameters()]

    assert_alike(end, steps=0)


def test_parameters_that_no_module_is_called_for_are_updated_in_the_step() -> None:
    """Transforms of torch.func take what lies in their memory, and no hook is called before; with whatever they share
    a message."""
    found = []
    for merge in (None, "dear"):
        held = nn.ParameterDict({"weight": nn.Parameter(X.clone())})
        layer = seeded(lambda: nn.Linear(X.shape[1], 2))
        optimizer = dear(nn.ModuleList([held, layer]), merge=merge)
        layer(held["weight"].square()).sum().backward()
        optimizer.step()
        found += [torch.func.vmap(torch.sin)(held["weight"]), torch.func.grad(lambda w: w.pow(3).sum())(held["weight"])]
    assert leaves(found[:2]) == leaves(found[2:])


def test_an_update_that_fails_half_way_is_not_taken_for_one_that_was_taken() -> None:
    model, optimizer = small("dear-1")
    optimizer.param_groups[0]["weight_decay"] = "much"  # as no step can use it
    model(X).sum().backward()
    optimizer.step()
    with pytest.raises(TypeError):
        model(X)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the update of 'scale' failed before, half-way"):
            model(X)
    with pytest.raises(UsageError, match="failed before"):
        optimizer.close()
    with pytest.raises(UsageError, match="failed before"):
        model.state_dict()
