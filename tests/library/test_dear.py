"""DeAR: averages come in the next forward pass, and nobody can tell but by the clock."""

import copy
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator, Handle
from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes
from resireduce.settings import DEAR_BYTES
from tests.dear import DEAR, Two, X, dear, small, walk
from tests.worlds import OPTIMIZERS, Net, distributed, loss_of, same, seeded, train, train_world

PLAIN: dict[str, Any] = DEAR | {"merge": None}


# --- the same training ---


@pytest.mark.parametrize("name", ["momentum", "adamw", "fused-adamw"])
@pytest.mark.parametrize("tied", [False, True])
def test_training_is_that_of_whole_sums_bit_for_bit(name: str, tied: bool) -> None:
    """Over ranks whose sums are formed in their order, whatever travels together."""

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        if tied:
            return model(torch.randint(600, (6,), generator=generator)).square().mean()
        return loss_of(model, generator)

    start = seeded(lambda: Net(blocks=1, tied=tied))
    options: dict[str, Any] = {"optimizer": name, "steps": 3, "loss": loss}
    whole, halves = (train_world(3, start, **options, **how) for how in (PLAIN, DEAR))
    for (one, _), (other, optimizer) in zip(whole, halves, strict=True):
        assert same(one, other) and not same(one, start) and len(optimizer.messages) > 2


def test_training_is_that_of_one_process_with_all_batches() -> None:
    """Plain torch in float64, of the mean of all ranks' losses, as the definition has it."""
    start = seeded(Two).double()

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        return model(torch.randn(5, 6, generator=generator).double()).square().mean()

    alone, generators = copy.deepcopy(start), [torch.Generator().manual_seed(rank) for rank in range(3)]
    wrapped = OPTIMIZERS["momentum"](list(alone.parameters()))
    for _ in range(5):
        wrapped.zero_grad()
        for generator in generators:
            (loss(alone, generator) / 3).backward()
        wrapped.step()
    for model, _ in train_world(3, start, steps=5, loss=loss, **{**DEAR, "merge": "dear-100"}):
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


SEPARABLE = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW"]
SEPARABLE += ["Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]


@pytest.mark.parametrize("kind", SEPARABLE)
def test_every_optimizer_of_torch_that_updates_each_parameter_by_itself(kind: str) -> None:
    def trained(merge: str | None) -> nn.Module:
        model = seeded(Two)
        optimizer = dear(model, getattr(torch.optim, kind)(model.parameters(), lr=0.01), merge=merge)
        walk(model, optimizer, 4)
        return model

    whole, halves = trained(None), trained("dear-100")
    assert same(whole, halves) and not same(whole, seeded(Two))


def accumulating(how: str) -> Callable[[Communicator, nn.Module, dict[str, Any]], nn.Module]:
    """Training with three backward passes a step."""

    def trained(communicator: Communicator, model: nn.Module, options: dict[str, Any]) -> nn.Module:
        wrapped = OPTIMIZERS["momentum"](list(model.parameters()))
        passes = {"backward_passes_per_step": 3} if how == "passes" else {}
        optimizer = distributed(model, wrapped, backend=communicator, **options, **passes)
        generator = torch.Generator().manual_seed(communicator.rank)
        for _ in range(2):
            optimizer.zero_grad()
            with optimizer.no_sync() if how == "no_sync" else nullcontext():
                loss_of(model, generator).backward()
                loss_of(model, generator).backward()
            loss_of(model, generator).backward()
            optimizer.step()
        return model

    return trained


@pytest.mark.parametrize("how", ["passes", "no_sync"])
def test_several_passes_are_added_up(how: str) -> None:
    start = seeded(lambda: Net(blocks=1))

    def rank(options: dict[str, Any]) -> Callable[[Communicator], nn.Module]:
        return lambda communicator: accumulating(how)(communicator, copy.deepcopy(start), options)

    for whole, halves in zip(LocalWorld(2).run(rank(PLAIN)), LocalWorld(2).run(rank(DEAR)), strict=True):
        assert same(whole, halves) and not same(whole, start)


def test_a_layer_that_only_some_ranks_use_is_updated_on_all_and_one_that_none_uses_on_none() -> None:
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: Tensor, used: int) -> Tensor:
            return self.layers[used](self.layers[0](x))

    start = seeded(Choosy)

    def rank(communicator: LocalCommunicator) -> tuple[nn.Module, nn.Module]:
        def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
            return model(torch.randn(4, 6, generator=generator), communicator.rank % 2).square().mean()  # never layer 2

        return tuple(  # type: ignore[return-value]
            train(communicator, start, optimizer="weight-decay", steps=3, loss=loss, **how)[0]
            for how in (PLAIN, DEAR | {"merge": "dear-1"})
        )

    for whole, halves in LocalWorld(2).run(rank):
        assert same(whole, halves)
        assert same(halves.layers[2], start.layers[2]) and not same(halves.layers[1], start.layers[1])  # type: ignore[index]


def test_clipping_between_backward_and_step_names_the_setting() -> None:
    """Gradients are kept here, and yet under way."""
    model, optimizer = small("dear")
    optimizer.zero_grad()
    model(X).square().mean().backward()
    with pytest.raises(UsageError, match=r"give max_grad_norm to .*gradients='kept', and no merge='dear'"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad()
    with pytest.raises(UsageError, match=r"gradients='kept' \(without merge='dear'\)"):
        optimizer.step()


@pytest.mark.parametrize("largest", [0.05, float("inf")])
def test_clipping_by_the_norm_of_all_averages(largest: float) -> None:
    start = seeded(lambda: Net(blocks=1))
    options: dict[str, Any] = {"steps": 3, "max_grad_norm": largest}
    whole, halves = (train_world(3, start, **options, **how) for how in (PLAIN, DEAR))
    for (one, first), (other, second) in zip(whole, halves, strict=True):
        torch.testing.assert_close(second.grad_norm, first.grad_norm)
        for mine, theirs in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert all(same(other, halves[0][0]) for other, _ in halves)


def test_a_gradient_that_is_not_finite_ends_the_step_on_all_ranks_and_changes_nothing() -> None:
    start, met = seeded(lambda: Net(blocks=1)), threading.Barrier(2)

    def rank(communicator: LocalCommunicator) -> bool:
        model = copy.deepcopy(start)
        optimizer = dear(model, backend=communicator)
        loss = loss_of(model, torch.Generator().manual_seed(0))
        (loss * (float("nan") if communicator.rank else 1.0)).backward()
        with pytest.raises(NonFiniteGradient):
            optimizer.step()
        met.wait(30)
        return same(model, start)

    assert LocalWorld(2).run(rank) == [True, True]


# --- what travels, and when ---


class Noted(LocalCommunicator):
    """Notes in `events` what of gradients is launched, with its elements, and what is waited for."""

    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.events: list[tuple[str, str, int]] = []

    def scatter_sum(self, tensor: Tensor, name: str) -> Any:
        self.events.append(("scatter", name, tensor.numel()))
        return super().scatter_sum(tensor, name)

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        self.events.append(("gather", name, tensor.numel()))
        brought = super().gather(tensor, name)

        def finish() -> Tensor:
            self.events.append(("wait", name, tensor.numel()))
            return brought.wait()

        return Handle(finish)


def test_sums_leave_in_the_backward_pass_and_the_step_waits_for_no_gather() -> None:
    world = LocalWorld(4)

    def rank(given: LocalCommunicator) -> None:
        ranks = Noted(given.rank, world)
        model = Two()
        optimizer = dear(model, backend=ranks, merge="dear-1")
        assert optimizer.messages == [["last.weight", "last.bias"], ["first.weight", "first.bias"], ["scale"]]
        ranks.events.clear()
        model(X).square().mean().backward()
        sums = [("scatter", "last.weight", 20), ("scatter", "first.weight", 36), ("scatter", "scale", 8)]
        assert ranks.events == sums, "18, 35 and 6 elements, filled up to what four ranks share evenly"
        optimizer.step()
        optimizer.zero_grad()
        gathers = [("gather", f"{name}.gather", numel // 4) for _, name, numel in reversed(sums)]
        assert ranks.events[3:] == gathers, "first needed first, and waited for by nobody yet"
        model.first(X)
        assert ranks.events[6:] == [("wait", "first.weight.gather", 9)]
        model(X)
        assert [name for _, name, _ in ranks.events[7:]] == ["scale.gather", "last.weight.gather"]

    world.run(rank)


def test_messages_are_modules_in_forward_order_closed_before_they_have_so_many_bytes() -> None:
    model = seeded(lambda: Net(blocks=3))
    modules: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        modules[name.rpartition(".")[0]] = modules.get(name.rpartition(".")[0], 0) + 4 * parameter.numel()
    for limit in (1, 40_000, 90_000, 10**9):
        expected: list[list[str]] = []
        room = 0
        for module, nbytes in modules.items():
            if not expected or nbytes >= room:
                expected.append([])
                room = limit
            expected[-1].append(module)
            room -= nbytes
        model = seeded(lambda: Net(blocks=3))
        made = dear(model, merge=f"dear-{limit}")
        groups = [list(dict.fromkeys(name.rpartition(".")[0] for name in names)) for names in reversed(made.messages)]
        assert groups == expected
        made.close()


def test_averages_take_no_memory_once_gradients_are_let_go() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100)))
    optimizer, x = dear(model), torch.ones(2, 100)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).sum()
        with LiveBytes(lambda tensor: tensor.numel() >= 10_000) as alive:
            loss.backward()
            optimizer.step()
            held = alive.current_bytes
            optimizer.zero_grad()
            model(x)
    assert held >= 2 * 40_000 and alive.current_bytes == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_plan_of_whole_sums_holds_as_much_between_two_steps() -> None:
    def figures(merge: str | None) -> dict[str, Any]:
        return plan(lambda: Net(blocks=3), **{**DEAR, "merge": merge})

    whole, halves = figures(None), figures("dear-40000")
    assert halves["total"] == whole["total"] and halves["gradients"] == whole["gradients"]
    assert halves["peak_states"] > whole["peak_states"], "a message is copied together"


# --- what is refused ---


class OwnSGD(torch.optim.SGD):
    """A subclass, which may do anything in its step."""


class OwnParameter(nn.Parameter):
    """A parameter of a class of one's own."""


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_optimizers_and_parameters_that_cannot_be_updated_late_are_refused() -> None:
    model = seeded(Two)
    hooked = torch.optim.SGD(model.parameters(), 0.1)
    hooked.register_step_pre_hook(lambda *_: None)
    for wrapped in (OwnSGD(model.parameters(), 0.1), hooked):
        with pytest.raises(
            ConfigError, match=rf"merge: 'dear-40000' is not allowed with {type(wrapped).__name__}, which"
        ):
            dear(model, wrapped)
    scripted = torch.jit.script(nn.Linear(6, 6))
    for whole, name in ((scripted, "that the model is"), (nn.Sequential(scripted), "0")):
        with pytest.raises(ConfigError, match=rf"not allowed with the torch\.jit\.ScriptModule '{name}', of which"):
            dear(whole)
    model.scale = OwnParameter(torch.ones(6))
    with pytest.raises(ConfigError, match=r"'scale', a OwnParameter and no plain nn\.Parameter"):
        dear(model)


def test_a_message_has_25_mebibytes_unless_it_is_said() -> None:
    assert DEAR_BYTES == 26_214_400
    _, optimizer = small("dear")
    assert len(optimizer.messages) == 1
