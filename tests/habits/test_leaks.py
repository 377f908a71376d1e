"""Forty times distribute, train, close: nothing is left of it, in memory, threads or open files."""

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from tests.habits.script import MODES
from tests.processes import on_processes
from tests.threads import LocalWorld

TIMES = 40
SIDE = 500
"""The model has 1 MiB: forty of them, or of their residuals, could not be overlooked."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the kernel's own counts are in /proc")


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, 10))


def train_once(gradients: str, communicator: Communicator | str, model: nn.Module, closes: bool) -> None:
    wrapped = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    optimizer = resireduce.distribute(model, wrapped, "baseline", backend=communicator, gradients=gradients)
    model(torch.ones(3, SIDE)).square().mean().backward()
    optimizer.step()
    if closes:
        optimizer.close()
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def held() -> tuple[int, int, int]:
    """Tensors that Python knows, threads, and open files."""
    gc.collect()
    tensors = sum(isinstance(one, torch.Tensor) for one in gc.get_objects())
    return tensors, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    """Memory of this process, after malloc has given back what it can."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check(act: Callable[[], None], times: int = TIMES, spare_mib: int = 8, rounds: int = 1) -> None:
    """After `times` calls what is held is what was after the third; memory but for what malloc cannot give back.

    rounds: memory may grow by more in all but one of so many rounds of calls: what leaks grows in each of them.
    """
    for _ in range(3):
        act()
    before, grown = held(), []
    while not grown or (min(grown) >= spare_mib and len(grown) < rounds):
        bytes_before = resident_bytes()
        for _ in range(times - 3):
            act()
        wait_until_as_few(before)
        grown.append((resident_bytes() - bytes_before) / 2**20)
    assert min(grown) < spare_mib, f"{grown} MiB more, round by round"


def wait_until_as_few(before: tuple[int, int, int]) -> None:
    """Nothing more is held than `before`; gloo closes what it has shaken hands by a little later."""
    ends = time.monotonic() + 60.0
    while any(now > then for now, then in zip(held(), before, strict=True)) and time.monotonic() < ends:
        time.sleep(0.1)
    after = held()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (
        f"tensors, threads, open files: {after}, after the third time {before}"
    )


@pytest.mark.parametrize("anew", [True, False], ids=["new models", "one model"])
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("gradients", MODES)
def test_models_again_and_again(gradients: str, closes: bool, anew: bool) -> None:
    model = build()
    check(lambda: train_once(gradients, "local", build() if anew else model, closes))


def test_two_ranks_in_one_process() -> None:
    def act(communicator: LocalCommunicator) -> None:
        for gradients in MODES:
            train_once(gradients, communicator, build(), closes=True)

    # New threads have arenas of malloc's own, which go up and down by 12 MiB in plain torch too, and once by 75 beside
    # other tests. Of four models each time, one tensor left of each would be 160.
    check(lambda: LocalWorld(2).run(act) and None, times=40, spare_mib=64, rounds=3)


def check_gloo(communicator: Communicator) -> None:
    """Process groups and their threads are used again; two optimizers that live together have one each."""
    check(lambda: train_once("streamed", "torch", build(), closes=True))
    check(lambda: train_once("kept", "torch", build(), closes=True), times=20)
    check(lambda: train_once("streamed", "torch", build(), closes=False), times=20)

    def two() -> None:
        models = [build(), build()]
        optimizers = [
            resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "baseline") for model in models
        ]
        (models[0](torch.ones(3, SIDE)) + models[1](torch.ones(3, SIDE))).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.close()

    check(two, times=20)


def test_two_processes() -> None:
    on_processes(2, check_gloo)
