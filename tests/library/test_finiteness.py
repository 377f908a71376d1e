"""Gradients that are not finite, where the host must not wait: zeros in their place, and one question a step."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce import pieces
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.grouping import Grouping
from resireduce.kernels.ops import SWITCH, library
from tests.threads import LocalWorld
from tests.worlds import Given, Net, distributed, loss_of, residuals, same, seeded, train

LIFETIMES = ("kept", "streamed")


def as_a_device(patch: pytest.MonkeyPatch) -> None:
    """Have the CPU be seen as a device that the host would wait for."""
    patch.setattr(pieces, "HOSTS", ("meta",))


LARGE, SMALL = "blocks.1.up.weight", "blocks.1.up.bias"
SPOILT = [
    *((LARGE, value, {"scheme": "w+2d"}) for value in (torch.nan, torch.inf, -torch.inf)),
    (SMALL, torch.nan, {"compressor": "dgc-momentum", "scheme": "baseline"}),
    *((SMALL, value, options) for value in (torch.nan, torch.inf) for options in ({}, {"merge": "hybrid"})),
]


@pytest.mark.parametrize(
    ("name", "value", "options"),
    [
        *((*one[:2], one[2] | {"gradients": gradients}) for one in SPOILT for gradients in LIFETIMES),
        *((SMALL, value, {"update": "in_backward", "compressor": "none"}) for value in (torch.nan, torch.inf)),
    ],
)
def test_it_is_named_on_all_ranks_at_the_end_of_the_step_and_spoils_nothing(
    name: str, value: float, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large tensor, and a small one, which shares a message with others."""
    as_a_device(monkeypatch)
    refused_on_all_ranks(name, value, options)


@pytest.mark.parametrize("gradients", LIFETIMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "options", [{"scheme": "w+2d"}, {"scheme": "a"}, {"scheme": "baseline", "residual_dtype": "int4"}]
)
def test_what_is_found_in_a_sum_is_named_and_enters_no_residual(
    options: dict[str, Any], value: float, gradients: str
) -> None:
    """On a CPU, where sums in the gradients' memory are looked at as their largest magnitudes are taken."""
    refused_on_all_ranks(LARGE, value, options | {"gradients": gradients})


def refused_on_all_ranks(name: str, value: float, options: dict[str, Any]) -> None:
    """Have a rank of two find `value` in the gradient of `name`: both hear of it, and nothing that is held has it."""
    start = seeded(Net)

    def rank(communicator: Communicator) -> str:
        model, optimizer = train(communicator, start, steps=2, **options)
        held = [*model.parameters(), *optimizer.residual_state_dict().values()]  # the tensors themselves
        if communicator.rank == 1:
            model.get_parameter(name).register_hook(lambda grad: grad.index_fill(0, torch.tensor([3]), value))
        loss_of(model, torch.Generator().manual_seed(5)).backward()
        with pytest.raises(NonFiniteGradient) as caught:
            optimizer.step()
        with pytest.raises(UsageError, match="an earlier step failed"):
            optimizer.step()
        assert all(tensor.isfinite().all() for tensor in held if tensor.is_floating_point())
        return str(caught.value)

    first, second = LocalWorld(2).run(rank)
    assert "that rank says which" in first
    assert f"{name!r} holds NaN or infinity; nothing of it was sent" in second


SUMS = [
    {"scheme": scheme, "residual_dtype": kind}
    for scheme, kind in (
        *(("baseline", kind) for kind in (None, "bfloat16", "int8", "int4")),
        *((scheme, None) for scheme in ("a", "w", "d", "2d")),
        ("w", "int8"),
    )
]
"""Schemes and precisions, most of which form the sum in the gradient's memory, and look at it in one pass."""


def spoilt_now_and_then(spoil: bool, shape: tuple[int, int], gradients: str, **options: Any) -> list[Tensor]:
    """What two weights, which share a residual where a scheme has such, come to. `spoil`: steps that are skipped."""
    names = ("one", "other")
    model = Given(torch.float32, **dict.fromkeys(names, shape))
    scaler = resireduce.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    groups = Grouping(groups=(names,)) if options.get("scheme") in ("a", "w") else Grouping(specific=names)
    options |= {"grad_scaler": scaler, "gradients": gradients, "groups": groups}
    optimizer = resireduce.distribute(
        model, torch.optim.SGD(model.parameters(), 0.1), backend="local", density=0.01, **options
    )
    drawn, last = torch.Generator().manual_seed(1), shape[0] * shape[1] - 1
    for number, places in enumerate((0, last, last // 2, slice(0, last), slice(0, last, 7))):
        given = [torch.randn(shape, generator=drawn) for _ in names]
        for value in (torch.nan, torch.inf, -torch.inf)[: 2 + number % 2] if spoil else ():
            bad = [grad.clone() for grad in given]
            for grad in bad:
                grad.view(-1)[places] = value
            take_step(model, optimizer, scaler, bad)
            assert optimizer.overflowed
        take_step(model, optimizer, scaler, given)
        assert not optimizer.overflowed
    return [*model.parameters(), *residuals(optimizer).values()]


def take_step(model: Given, optimizer: Any, scaler: resireduce.GradScaler, gradients: list[Tensor]) -> None:
    optimizer.zero_grad()
    scaler.scale(model(dict(zip(("one", "other"), gradients, strict=True)))).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize(("switch", "shape"), [("1", (700, 500)), ("0", (100, 101))], ids=["compiled", "plain"])
@pytest.mark.parametrize("options", SUMS, ids=str)
def test_gradients_that_are_refused_leave_no_trace(
    options: dict[str, str | None], shape: tuple[int, int], switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters and residuals are those of a script that has never seen them."""
    monkeypatch.setenv(SWITCH, switch)
    library.cache_clear()
    for gradients in LIFETIMES:
        tried, spared = (spoilt_now_and_then(spoil, shape, gradients, **options) for spoil in (True, False))
        assert all(map(torch.equal, tried, spared)) and tried[0].any()
    library.cache_clear()


def test_a_step_holds_no_notes_of_the_one_before() -> None:
    """A wrapper's hook, which never asks for them, would hold those of all steps."""
    optimizer = distributed(seeded(Net))
    kept = optimizer.feedback
    kept.finiteness.noted.append((["a", "b"], torch.tensor([0, 1])))
    kept.begin_step(1)
    assert kept.finiteness.failure() is None


@pytest.mark.parametrize("gradients", LIFETIMES)
@pytest.mark.parametrize("compressor", ["none", "fp16", "topk", "block8", "block8-two-phase"])
@pytest.mark.parametrize("spoilt", ["0.weight", "0.bias"])
def test_a_bucket_that_no_gradient_completes_hides_no_overflow(spoilt: str, compressor: str, gradients: str) -> None:
    """The bucket of a layer that is not used is compressed when the step ends, and not as its last gradient comes."""
    start = seeded(lambda: nn.ModuleList([nn.Linear(101, 101), nn.Linear(101, 101)]))

    def rank(communicator: Communicator, merge: str) -> list[Tensor]:
        """Parameters and residuals after a step that rank 0's gradient has skipped, and one more."""
        model, scaler = copy.deepcopy(start), resireduce.GradScaler("cpu", init_scale=4.0)
        given = {"gradients": gradients, "compressor": compressor, "merge": merge, "grad_scaler": scaler}
        optimizer = distributed(model, backend=communicator, **given)
        inputs = torch.randn(4, 101, generator=torch.Generator().manual_seed(communicator.rank))
        for step in range(2):
            optimizer.zero_grad()
            hook = model.get_parameter(spoilt).register_hook(lambda grad: grad * torch.nan)
            if communicator.rank or step:
                hook.remove()
            scaler.scale(model[0](inputs).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            hook.remove()
            assert step or (optimizer.overflowed and scaler.get_scale() == 2.0 and same(model, start))
        return copy.deepcopy([*model.parameters(), *residuals(optimizer).values()])

    merged, apart = (LocalWorld(2).run(lambda one, merge=merge: rank(one, merge)) for merge in ("one", "none"))
    for states, others in zip(merged, apart, strict=True):
        assert all(one.isfinite().all() and torch.equal(one, other) for one, other in zip(states, others, strict=True))


def test_a_rank_whose_gradient_is_refused_keeps_no_other_waiting_in_its_backward_pass() -> None:
    """Others use averages in their backward pass, and then wait for this rank, which is not in `step()` yet."""
    start, together = seeded(Net), threading.Barrier(2)

    def rank(communicator: Communicator) -> str:
        model, optimizer = train(communicator, start, steps=2, update="in_backward", compressor="none")
        if communicator.rank == 1:
            model.get_parameter(LARGE).register_hook(lambda grad: grad * torch.nan)
        loss_of(model, torch.Generator().manual_seed(5)).backward()
        together.wait(60)
        with pytest.raises(NonFiniteGradient) as caught:
            optimizer.step()
        return str(caught.value)

    assert [repr(LARGE) in text for text in LocalWorld(2).run(rank)] == [False, True]


def test_a_pass_that_is_refused_leaves_the_step_begun() -> None:
    """What residuals have absorbed before would otherwise be sent with the next step's."""
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=1, scheme="baseline")
    for factor in (1.0, torch.nan):
        with optimizer.no_sync():
            (loss_of(model, torch.Generator().manual_seed(5)) * factor).backward()
    with pytest.raises(UsageError, match=r"zero_grad\(\) between backward\(\) and step\(\)"):
        optimizer.zero_grad()
    with pytest.raises(NonFiniteGradient):
        optimizer.step()
    assert all(one.isfinite().all() for one in optimizer.feedback.residual.tensors().values())
