"""Backward passes that make gradients all at once, as compiled ones do, or in several threads."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

import resireduce
from resireduce.comm.local import LocalCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.planning.memory import LiveBytes, held_tensors, track_states
from tests.worlds import OPTIMIZERS, Net, loss_of, same, seeded

Prepare = Callable[[nn.Module], None]


@pytest.fixture(autouse=True)
def outside_of_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear torch's note that a mode is on: trackers of ranks, which are threads, may leave it behind for the whole
    process in tests before these, and torch 2.9 then compiles nothing."""
    monkeypatch.setattr(_python_dispatch, "_is_in_any_mode_without_ignore_compile_internals", False, raising=False)


def compile_whole(model: nn.Module) -> None:
    model.compile(backend="aot_eager")


def compile_blocks(model: nn.Module) -> None:
    for block in model.blocks:
        block.compile(backend="aot_eager")


def fullest_moment(prepare: Prepare) -> tuple[int, int]:
    """Bytes alive at most in a streamed backward pass beside the model states, and those of all gradients."""
    torch.compiler.reset()
    model = seeded(lambda: Net(blocks=8))
    prepare(model)
    wrapped = OPTIMIZERS["momentum"](list(model.parameters()))
    optimizer = resireduce.distribute(model, wrapped, "baseline", density=0.01, backend="local")
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        tracker = within_backward(optimizer, loss_of(model, generator))
        optimizer.step()
    states = sum(tensor.nbytes for tensors in held_tensors(optimizer).values() for tensor in tensors)
    return tracker.peak_bytes - states, sum(parameter.nbytes for parameter in model.parameters())


def within_backward(optimizer: DistributedOptimizer, loss: Tensor) -> LiveBytes:
    """A tracker is not put around the forward pass: a compiled one would then run as if it were not."""
    tracker = track_states(optimizer)
    with tracker:
        loss.backward()
    return tracker


def test_gradients_pile_up_if_the_whole_model_is_compiled_and_not_if_its_blocks_are() -> None:
    eager, gradients = fullest_moment(lambda model: None)
    whole, _ = fullest_moment(compile_whole)
    blocks, _ = fullest_moment(compile_blocks)
    assert eager < 0.6 * gradients < gradients < whole
    assert blocks < 1.05 * eager


class Slow(LocalCommunicator):
    """Lets other threads come in while a message leaves."""

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Any:
        time.sleep(1e-3)
        return super().all_gather(tensor, name, equal_sizes)


class Towers(nn.Module):
    """Three stacks of equal layers, each with a loss of its own, as parts of a model on several devices may have."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(nn.Sequential(*(nn.Linear(104, 104) for _ in range(6))) for _ in range(3))


def towers_trained(at_once: bool, options: dict[str, object]) -> nn.Module:
    model = seeded(Towers)
    wrapped = torch.optim.SGD(model.parameters(), 1e-2)
    optimizer = resireduce.distribute(model, wrapped, backend=Slow(), **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        optimizer.zero_grad()
        passes = [
            threading.Thread(target=stack(torch.randn(4, 104, generator=generator)).square().sum().backward)
            for stack in model.stacks
        ]
        for one in passes:
            one.start()
            if not at_once:
                one.join()
        for one in passes:
            one.join()
        optimizer.step()
    return model


@pytest.mark.parametrize("options", [{}, {"scheme": "baseline"}], ids=str)
def test_several_threads_finish_gradients_at_once(options: dict[str, object]) -> None:
    """As autograd's threads do, of which there is one for each device of a model."""
    assert same(towers_trained(True, options), towers_trained(False, options))
