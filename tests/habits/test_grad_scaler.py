"""Half precision: gradients are unscaled first, and a step that overflows on one rank changes no rank."""

import copy
import math
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import nn

import resireduce
from resireduce import pieces
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES
from tests.threads import LocalWorld
from tests.worlds import OPTIMIZERS, Net, distributed, loss_of, same, seeded, sgd_for, train

SCALE = 2.0**10


def scaled(
    communicator: Communicator,
    start: nn.Module,
    overflows: dict[int, int],
    steps: int = 6,
    of: str = "weight",
    **options: object,
) -> tuple[nn.Module, DistributedOptimizer, resireduce.GradScaler]:
    """Train with a scaled loss; the gradient `of` the first layer alone is infinite in step s, on rank overflows[s]."""
    model = copy.deepcopy(start)
    scaler = resireduce.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)
    wrapped = OPTIMIZERS[sgd_for(options)](list(model.parameters()))
    options = {"density": 0.05, "scheme": "w+2d", **options}
    optimizer = resireduce.distribute(model, wrapped, backend=communicator, grad_scaler=scaler, **options)
    generator = torch.Generator().manual_seed(communicator.rank)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, generator)
        if overflows.get(step) == communicator.rank:
            getattr(model.first, of).register_hook(lambda grad: grad * torch.inf)
        scaler.scale(loss).backward()
        getattr(model.first, of)._backward_hooks = None
        assert scaler.step(optimizer) is None
        assert optimizer.overflowed == (step in overflows)
        scaler.update()
    return model, optimizer, scaler


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize(("scheme", "compressor"), [("w+2d", "topk"), ("baseline", "randomk"), ("none", "none")])
def test_a_scale_changes_nothing(gradients: str, scheme: str, compressor: str) -> None:
    options = {"gradients": gradients, "scheme": scheme, "compressor": compressor}
    plain, _ = train(LocalCommunicator(), seeded(Net), steps=6, **options)
    model, _, scaler = scaled(LocalCommunicator(), seeded(Net), {}, **options)
    assert same(plain, model) and scaler.get_scale() == SCALE, "a power of two is divided out exactly"


KINDS = [
    (name, "kept" if listed.corrects_momentum else gradients)
    for (name, listed), gradients in zip(COMPRESSORS.items(), cycle(GRADIENTS), strict=False)
]


@pytest.mark.parametrize(("compressor", "gradients"), KINDS)
def test_all_ranks_skip_a_step_in_which_one_overflows(gradients: str, compressor: str) -> None:
    start = seeded(Net)
    options = {"gradients": gradients, "compressor": compressor, "scheme": "baseline"}

    def rank(communicator: Communicator) -> tuple[nn.Module, nn.Module, float, int]:
        before, _, _ = scaled(communicator, start, {}, steps=2, **options)
        after, _, _ = scaled(communicator, start, {2: 1}, steps=3, **options)
        assert same(before, after), "parameters are as before the step"
        model, optimizer, scaler = scaled(communicator, start, {2: 1}, steps=4, **options)
        states = [tensor for tensor in optimizer.residual_state_dict().values() if tensor.is_floating_point()]
        assert all(tensor.isfinite().all() for tensor in states)
        return model, after, scaler.get_scale(), optimizer.steps

    (first, skipped, scale, steps), (second, *_) = LocalWorld(2).run(rank)
    assert same(first, second) and not same(first, skipped) and scale == SCALE / 2
    assert steps == 3, "the step that was skipped is taken again"


@pytest.mark.parametrize(
    "options",
    [{}, {"of": "bias"}, {"overflows": {}, "scheme": "w+2d"}, {"overflows": {}, "residual_dtype": "int8"}],
    ids=str,
)
@pytest.mark.parametrize("gradients", GRADIENTS)
def test_steps_are_taken_and_skipped_alike_where_the_host_must_not_wait(
    gradients: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, options = seeded(Net), {"overflows": {2: 0}, "gradients": gradients, "scheme": "baseline", **options}
    expected, before, _ = scaled(LocalCommunicator(), start, **options)
    monkeypatch.setattr(pieces, "HOSTS", ("meta",))
    model, after, _ = scaled(LocalCommunicator(), start, **options)
    states = before.residual_state_dict(), after.residual_state_dict()
    assert same(model, expected) and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


REMEMBERING = ("sidco-exp", "powersgd", "l1-chunks", "ok-topk", "block8-two-phase")


@pytest.mark.parametrize(
    ("scheme", "compressor"),
    [*((scheme, "topk") for scheme in SCHEMES), *(("baseline", name) for name in (*REMEMBERING, "dgc-momentum"))],
)
def test_kept_residuals_are_as_before_a_step_that_overflows(scheme: str, compressor: str) -> None:
    options = {"gradients": "kept", "scheme": scheme, "compressor": compressor}
    _, before, _ = scaled(LocalCommunicator(), seeded(Net), {}, steps=2, **options)
    _, after, _ = scaled(LocalCommunicator(), seeded(Net), {2: 0}, steps=3, **options)
    states = before.residual_state_dict(), after.residual_state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("compressor", ["topk", "randomk", "fp16", "qsgd", "dgc", *REMEMBERING])
def test_streamed_residuals_take_in_what_was_sent_in_a_step_that_overflows(compressor: str) -> None:
    options = {"gradients": "streamed", "scheme": "baseline", "compressor": compressor}
    start = seeded(Net)
    model, before, _ = scaled(LocalCommunicator(), start, {}, steps=2, **options)
    _, after, _ = scaled(LocalCommunicator(), start, {2: 0}, steps=3, **options)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        loss = loss_of(model, generator)
    gradients = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, model.parameters()), strict=True))
    for name, left in before.residual_state_dict().items():
        if not name.startswith("full."):  # what the compressor remembers, and how many steps there were
            assert torch.equal(after.residual_state_dict()[name], left)
            continue
        parameter = name.removeprefix("full.")
        expected = left if parameter == "first.weight" else left + gradients[parameter]
        torch.testing.assert_close(after.residual_state_dict()[name], expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_several_passes_are_unscaled_once() -> None:
    for gradients in ("kept", "streamed"):
        trained = []
        for scale in (1.0, SCALE):
            model = seeded(Net)
            scaler = resireduce.GradScaler("cpu", init_scale=scale)
            optimizer = distributed(model, gradients=gradients, grad_scaler=scaler)
            generator = torch.Generator().manual_seed(0)
            for _ in range(2):
                optimizer.zero_grad()
                with optimizer.no_sync():
                    scaler.scale(loss_of(model, generator)).backward()
                scaler.scale(loss_of(model, generator)).backward()
                scaler.step(optimizer)
                scaler.update()
            trained.append(model)
        assert same(*trained)


def test_autocast_trains_and_clips_with_a_scaler() -> None:
    start, trained = seeded(Net), []
    for gradients in ("kept", "streamed"):
        model, scaler = copy.deepcopy(start), resireduce.GradScaler("cpu", init_scale=SCALE)
        optimizer = distributed(model, scheme="w+2d", gradients=gradients, grad_scaler=scaler, max_grad_norm=0.3)
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, generator)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.grad_norm is not None and 0.3 < optimizer.grad_norm < 100
        trained.append(model)
    assert same(*trained) and not same(trained[0], start)


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_the_norm_of_a_skipped_step_is_infinite(gradients: str) -> None:
    model, scaler = seeded(Net), resireduce.GradScaler("cpu", init_scale=SCALE)
    optimizer = distributed(model, gradients=gradients, grad_scaler=scaler, max_grad_norm=0.3)
    generator, norms = torch.Generator().manual_seed(0), []
    for factor in (math.inf, 1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, generator) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.grad_norm is not None
        norms.append(math.isinf(optimizer.grad_norm))
    assert norms == [True, False, True, False]


def test_mistakes_are_named_with_the_cure() -> None:
    model = seeded(Net)
    wrapped = torch.optim.SGD(model.parameters(), 0.1)
    scaler = resireduce.GradScaler("cpu")
    optimizer = resireduce.distribute(model, wrapped, backend="local", grad_scaler=scaler)
    with pytest.raises(UsageError, match=r"unscale_: .*max_grad_norm"):
        scaler.unscale_(optimizer)
    with pytest.raises(UsageError, match=r"does not know this scaler.*distribute\(grad_scaler"):
        resireduce.GradScaler("cpu").step(optimizer)


def test_a_scaler_that_is_switched_off_is_none() -> None:
    model, scaler = seeded(Net), resireduce.GradScaler("cpu", enabled=False)
    optimizer = distributed(model, scheme="w+2d", grad_scaler=scaler)
    scaler.scale(loss_of(model, torch.Generator()) * torch.nan).backward()
    with pytest.raises(NonFiniteGradient):
        scaler.step(optimizer)


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_a_loss_that_was_not_scaled_is_not_divided_either(gradients: str) -> None:
    """In the first step, and in one after others that were right: the scale would be taken out of what has none."""
    model, scaler = seeded(Net), resireduce.GradScaler("cpu", init_scale=SCALE)
    optimizer = distributed(model, gradients=gradients, grad_scaler=scaler)
    scaler.scale(loss_of(model, torch.Generator())).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    with pytest.raises(UsageError, match=r"backward\(\) without grad_scaler.scale\(loss\)"):
        loss_of(model, torch.Generator()).backward()
        optimizer.step()


def test_a_scaler_that_is_used_wrongly() -> None:
    model, scaler = seeded(Net), resireduce.GradScaler("cpu", init_scale=0.0)
    optimizer = distributed(model, scheme="w+2d", grad_scaler=scaler, gradients="kept")
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.step(optimizer)
    scaler.scale(loss_of(model, torch.Generator())).backward()
    with pytest.raises(ZeroDivisionError):
        scaler.step(optimizer)
    model, scaler = seeded(Net), resireduce.GradScaler("cpu")
    optimizer = distributed(model, scheme="w+2d", grad_scaler=scaler)
    scaler.scale(loss_of(model, torch.Generator())).backward()
    scaler.step(optimizer)
    with pytest.raises(UsageError, match="already been called since the last update"):
        scaler.step(optimizer)
    half = seeded(Net).half()
    with pytest.raises(ConfigError, match=r"grad_scaler: .* parameters in float16 \('first\.weight'\)"):
        distributed(half, scheme="w+2d", grad_scaler=scaler)


def test_with_an_ordinary_optimizer_it_is_torchs_own() -> None:
    trained = []
    for kind in (torch.amp.GradScaler, resireduce.GradScaler):
        model, scaler = seeded(Net), kind("cpu", init_scale=SCALE)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler.scale(loss_of(model, torch.Generator().manual_seed(0))).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        trained.append(model)
    assert same(*trained)


# --- the residual ---


def test_streamed_what_a_skipped_step_had_sent_is_put_back_whole() -> None:
    start, left = seeded(Net), []
    for density in (1.0, 1e-9):
        model, scaler = seeded(Net), resireduce.GradScaler("cpu", init_scale=4.0)
        options = {"decay": 0.5}
        optimizer = distributed(model, scheme="decayed", options=options, density=density, grad_scaler=scaler)
        hook = model.first.weight.register_hook(lambda grad: grad * torch.inf)
        scaler.scale(loss_of(model, torch.Generator().manual_seed(0))).backward()
        scaler.step(optimizer)
        hook.remove()
        assert optimizer.overflowed and same(model, start)
        left.append(optimizer.residual_state_dict())
    for name, everything in left[0].items():
        if name.startswith("full.blocks"):
            differ = left[1][name] != everything / 2
            assert everything.any() and differ.sum() == 1, "one element was sent, and comes back whole"
