"""Gradients that are not finite, where the host must not wait: zeros in their place, and one question a step."""

import copy

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce import finiteness
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.finiteness import Finiteness
from resireduce.grouping import Grouping
from resireduce.kernels.native import SWITCH, library
from tests.worlds import Net, loss_of, same, seeded, train

LIFETIMES = ("kept", "streamed")


def as_a_device(patch: pytest.MonkeyPatch) -> None:
    """Have the CPU be seen as a device that the host would wait for."""
    patch.setattr(finiteness, "AT_ONCE", ("meta",))


def scaled(
    start: nn.Module, spoilt: int, steps: int, of: str = "weight", **options: object
) -> tuple[nn.Module, DistributedOptimizer]:
    """Train with a GradScaler; the loss of step number `spoilt` overflows in that parameter `of` the first layer."""
    model, scaler = copy.deepcopy(start), resireduce.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    wrapped = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = resireduce.distribute(model, wrapped, backend="local", grad_scaler=scaler, density=0.05, **options)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, generator)
        if step == spoilt:
            getattr(model.first, of).register_hook(lambda grad: grad * torch.nan)
        scaler.scale(loss).backward()
        getattr(model.first, of)._backward_hooks = None
        scaler.step(optimizer)
        assert optimizer.overflowed == (step == spoilt)
        scaler.update()
    return model, optimizer


@pytest.mark.parametrize("gradients", LIFETIMES)
@pytest.mark.parametrize("options", [{"scheme": "baseline"}, {"scheme": "w+2d"}, {"residual_dtype": "int8"}], ids=str)
def test_what_is_finite_trains_as_if_it_were_asked_at_once(
    options: dict[str, str], gradients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = seeded(Net)
    expected, before = train(LocalCommunicator(), start, steps=4, gradients=gradients, **options)
    as_a_device(monkeypatch)
    model, after = train(LocalCommunicator(), start, steps=4, gradients=gradients, **options)
    states = before.residual_state_dict(), after.residual_state_dict()
    assert same(model, expected) and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def check_that_it_is_named_and_spoils_nothing(name: str, value: float, **options: object) -> list[DistributedOptimizer]:
    """All ranks raise at the end of a step in which rank 1's gradient of a parameter holds `value`."""
    start = seeded(Net)

    def rank(communicator: Communicator) -> tuple[str, DistributedOptimizer]:
        model, optimizer = train(communicator, start, steps=2, **options)  # type: ignore[arg-type]
        if communicator.rank == 1:
            model.get_parameter(name).register_hook(lambda grad: grad.index_fill(0, torch.tensor([3]), value))
        loss_of(model, torch.Generator().manual_seed(5)).backward()
        with pytest.raises(NonFiniteGradient) as caught:
            optimizer.step()
        with pytest.raises(UsageError, match="an earlier step failed"):
            optimizer.step()
        held = [*model.parameters(), *optimizer.feedback.residual.tensors().values()]
        assert all(tensor.isfinite().all() for tensor in held if tensor.is_floating_point())
        return str(caught.value), optimizer

    (first, one), (second, other) = LocalWorld(2).run(rank)
    assert "that rank says which" in first
    assert f"{name!r} holds NaN or infinity; nothing of it was sent" in second
    return [one, other]


@pytest.mark.parametrize("gradients", LIFETIMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_all_ranks_raise_at_the_end_of_the_step_and_no_parameter_is_spoilt(
    value: float, gradients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_a_device(monkeypatch)
    check_that_it_is_named_and_spoils_nothing("blocks.1.up.weight", value, gradients=gradients, scheme="w+2d")


@pytest.mark.parametrize("of", ["weight", "bias"])
@pytest.mark.parametrize("gradients", LIFETIMES)
def test_a_step_that_a_scaler_skips_is_skipped_as_ever(
    gradients: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, options = seeded(Net), {"gradients": gradients, "scheme": "baseline", "of": of}
    expected, before = scaled(start, spoilt=2, steps=6, **options)
    as_a_device(monkeypatch)
    model, after = scaled(start, spoilt=2, steps=6, **options)
    states = before.residual_state_dict(), after.residual_state_dict()
    assert same(model, expected) and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_first_that_was_not_finite_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_device(monkeypatch)
    asked, gradients = Finiteness(at_once=False), [torch.ones(3), torch.tensor([1.0, torch.nan]), torch.empty(0)]
    gradients.append(torch.tensor([[torch.inf]]))
    for number, grad in enumerate(gradients):
        asked.check_(grad, f"p{number}")
    assert [grad.tolist() for grad in gradients] == [[1, 1, 1], [0, 0], [], [[0]]]
    assert "'p1'" in str(asked.failure()) and asked.failure() is None


def test_several_are_asked_about_at_once_and_the_first_is_named_in_the_order_in_which_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_a_device(monkeypatch)
    fine, spoilt, empty = torch.ones(3), torch.tensor([1.0, -torch.inf]), torch.empty(0)
    for gradients, named in (([fine, spoilt, empty], "p1"), ([fine, fine, empty], "last"), ([fine, fine], None)):
        asked, names = Finiteness(at_once=False), [f"p{number}" for number in range(len(gradients))]
        for name in names:
            asked.check_later(name)
        if named is not None:
            asked.check_(torch.tensor([torch.nan]), "last")
        packed = torch.cat(gradients)
        asked.check_together_(packed, gradients, names)
        assert packed.tolist() == ([0.0] * 5 if named == "p1" else [1.0] * 6)
        failure = asked.failure()
        assert failure is None if named is None else f"{named!r} holds NaN" in str(failure)
        assert asked.failure() is None


@pytest.mark.parametrize("options", [{}, {"merge": "hybrid"}, {"update": "in_backward", "compressor": "none"}], ids=str)
@pytest.mark.parametrize("gradients", LIFETIMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_small_tensor_that_shares_a_message_is_named_and_spoils_nothing(
    value: float, gradients: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if gradients == "kept":
        options = {key: one for key, one in options.items() if key != "update"}
    as_a_device(monkeypatch)
    options = {"gradients": gradients, "overlap": True, **options}  # type: ignore[dict-item]
    for optimizer in check_that_it_is_named_and_spoils_nothing("blocks.1.up.bias", value, **options):
        assert {"blocks.1.up.bias", "norm.weight"} <= optimizer.feedback.checked_packed


@pytest.mark.parametrize("gradients", LIFETIMES)
def test_small_tensors_that_share_a_message_cost_one_question(gradients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_device(monkeypatch)
    asked: list[int] = []
    plain = finiteness.zero_unless_finite_
    monkeypatch.setattr(finiteness, "zero_unless_finite_", lambda grad: asked.append(grad.numel()) or plain(grad))
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=2, gradients=gradients)
    compressed = [p.numel() for name, p in model.named_parameters() if optimizer.feedback.keeps_residual(name)]
    messages = [one for one in optimizer._exchange.queue.buckets if one[0].dense]
    packed = [sum(slot.parameter.numel() for slot in one) for one in messages]
    assert sorted(asked) == sorted(2 * [*compressed, *packed])
    assert len(packed) < len(list(model.parameters())) - len(compressed)


def test_a_step_that_is_given_up_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    as_a_device(monkeypatch)
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=1, gradients="kept")

    def spoil(grad: Tensor) -> Tensor:
        return grad * torch.nan

    handle = model.first.weight.register_hook(spoil)
    loss_of(model, torch.Generator().manual_seed(1)).backward()
    handle.remove()
    optimizer.zero_grad()
    loss_of(model, torch.Generator().manual_seed(1)).backward()
    optimizer.step()
    assert optimizer.steps == 2


SUMS = [
    {"scheme": scheme, "residual_dtype": kind}
    for scheme, kind in (
        *(("baseline", kind) for kind in (None, "bfloat16", "int8", "int4")),
        *((scheme, None) for scheme in ("a", "w", "d", "2d")),
        ("w", "int8"),
    )
]
"""Schemes and precisions, most of which form the sum in the gradient's memory, and look at it in one pass."""


def pipeline(shape: tuple[int, ...], **options: object) -> DistributedOptimizer:
    """Return what compresses gradients of two layers of this shape, which share a residual where a scheme has such."""
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(shape[1], shape[0], bias=False) for _ in range(2)])
    shares = set(options.get("scheme", "").split("+")) & {"a", "w"}
    names = ("layers.0.weight", "layers.1.weight")
    groups = Grouping(groups=(names,)) if shares else Grouping(specific=names)
    wrapped = torch.optim.SGD(model.parameters(), 0.1)
    return resireduce.distribute(model, wrapped, backend="local", density=0.01, groups=groups, **options)


@pytest.mark.parametrize("switch", ["1", "0"], ids=["compiled", "plain"])
@pytest.mark.parametrize("shape", [(100, 101), (700, 500)], ids=str)
@pytest.mark.parametrize("options", SUMS, ids=str)
def test_a_gradient_that_is_refused_leaves_no_trace(
    options: dict[str, str | None], shape: tuple[int, int], switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads and residuals of those after it are those of a pipeline that has never seen it."""
    monkeypatch.setenv(SWITCH, switch)
    library.cache_clear()
    given = {key: value for key, value in options.items() if value is not None}
    optimizers = [pipeline(shape, **given) for _ in range(2)]
    tried, spared = (one.feedback for one in optimizers)
    names, drawn = ["layers.1.weight", "layers.0.weight"], torch.Generator().manual_seed(1)
    last = shape[0] * shape[1] - 1
    for step, places in enumerate((0, last, last // 2, slice(0, last), slice(0, last, 7))):
        for name in names:
            grad = torch.randn(shape, generator=drawn)
            for value in (torch.nan, torch.inf, -torch.inf):
                spoilt = grad.clone()
                spoilt.view(-1)[places] = value
                with pytest.raises(NonFiniteGradient, match=rf"'{name}' holds NaN or infinity; its residual is unch"):
                    tried.compress(spoilt, name, step)
            payloads = [one.compress(grad.clone(), name, step) for one in (tried, spared)]
            assert torch.equal(payloads[0].buffer, payloads[1].buffer)
        for one in (tried, spared):
            one.residual.end_step(step)
        states = [one.residual.tensors() for one in (tried, spared)]
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])
    library.cache_clear()


def test_a_sum_that_overflows_is_refused_where_the_residual_would_keep_infinity() -> None:
    optimizer = pipeline((700, 500), scheme="a")
    feedback = optimizer.feedback
    for name in ("layers.1.weight", "layers.0.weight"):
        feedback.compress(torch.full((700, 500), 1.5e38), name, 0)
    before = {name: tensor.clone() for name, tensor in feedback.residual.tensors().items()}
    with pytest.raises(NonFiniteGradient):
        feedback.compress(torch.full((700, 500), 3e38), "layers.1.weight", 1)
    after = feedback.residual.tensors()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
