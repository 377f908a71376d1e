"""Programs that wait for each other, in Triton's interpreter, which has no two at once: here they take turns.

Each program runs in a thread of its own until it waits; when all do, each goes on from there, one after the other. What
is left to a GPU is the waiting itself.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton.language as tl  # noqa: F401  # where the interpreter expects it: among the names that a kernel sees
from torch import Tensor
from triton.runtime import interpreter

from resireduce.kernels.gpu import near, once, self_check, together
from resireduce.kernels.gpu.select import take_largest_
from tests.covering import in_turn

PROGRAMS = 5


class Turn:
    """A program that stops where it waits for others."""

    def __init__(self, run: Callable[[], object], place: tuple[int, ...]):
        self._run, self._place = run, place
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self.done, self.failed = False, None
        self._thread = threading.Thread(target=self._whole, daemon=True)
        self._thread.turn = self  # type: ignore[attr-defined]
        self._thread.start()

    def _whole(self) -> None:
        self._mine.acquire()
        try:
            self._run()
        except BaseException as error:
            self.failed = error
        self.done = True
        self._others.release()

    def stop(self) -> None:
        self._others.release()
        self._mine.acquire()

    def go_on(self) -> None:
        interpreter.interpreter_builder.set_grid_idx(*self._place)
        self._mine.release()
        self._others.acquire()
        if self.failed is not None:
            raise self.failed


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Kernels in one launch have several programs; returned is how many programs each launch had."""
    launched: list[int] = []
    monkeypatch.setattr(once, "programs_for", lambda device, tiles: max(1, min(PROGRAMS, tiles)))
    monkeypatch.setattr(once, "wait", lambda arrived, times: threading.current_thread().turn.stop())  # type: ignore[attr-defined]
    for kernel in ("_select", "_border"):
        monkeypatch.setattr(once, kernel, InTurn(getattr(once, kernel), launched))
    yield launched


class InTurn:
    """A kernel whose programs take turns."""

    def __init__(self, kernel: Any, launched: list[int]):
        self._kernel, self._launched = kernel, launched

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        executor = interpreter.GridExecutor(self._kernel.rewrite(), self._kernel.arg_names, grid)
        run, waiting = executor.fn, []

        def begin(**given: Any) -> None:
            place = len(waiting)
            waiting.append(Turn(lambda: run(**given), (place, 0, 0)))
            if place + 1 == grid[0]:
                while not all(one.done for one in waiting):
                    for one in waiting:
                        one.go_on()
                    assert len({one.done for one in waiting}) == 1, "all wait equally often"

        begin.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]
        executor.fn = begin
        self._launched.append(grid[0])
        return executor


def drawn(n: int, kind: str, dtype: torch.dtype) -> Tensor:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    return {"normal": values, "ties": values.mul(2).round(), "constant": torch.ones_like(values)}[kind]


@pytest.mark.parametrize(
    ("n", "kind", "dtype"),
    in_turn([1279, 1280, 1500, 2801], ["normal", "ties", "constant"], [torch.float32, torch.float16]),
)
def test_several_programs_select_what_one_does(n: int, kind: str, dtype: torch.dtype, turns: list[int]) -> None:
    flat, added = drawn(n, kind, dtype), drawn(n, "ties", dtype).flip(0)
    for k in (1, n // 10, n - 1):
        order = flat.abs().sort(stable=True).indices
        assert torch.equal(once.selected(flat, k, tile=256), order[-k:].sort().values)
    both = flat + added
    indices = both.abs().sort(stable=True).indices[-100:].sort().values
    into = torch.empty(100, dtype=dtype), torch.empty(100, dtype=torch.int32)
    once.selected(flat, 100, None, added, into, tile=256)
    assert torch.equal(into[1].long(), indices) and self_check.same_bits(into[0], both[indices])
    assert self_check.same_bits(flat, both.index_fill(0, indices, 0.0))
    assert turns == [PROGRAMS] * 4


@pytest.mark.parametrize("kind", ["normal", "constant"])
def test_several_programs_go_through_those_near(kind: str, turns: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "NARROW", 1000)
    monkeypatch.setattr(near, "SAMPLES", 2000)
    monkeypatch.setattr(once.selected, "__defaults__", (*once.selected.__defaults__[:-1], 256))
    monkeypatch.setattr(once.find_border, "__defaults__", (256,))
    flat, added = drawn(20_001, kind, torch.float32), drawn(20_001, kind, torch.float32).flip(0)
    both = flat + added
    indices = both.abs().sort(stable=True).indices[-750:].sort().values
    into = torch.empty(750), torch.empty(750, dtype=torch.int32)
    take_largest_(flat, 750, into, added)
    assert torch.equal(into[1].long(), indices) and self_check.same_bits(into[0], both[indices])
    assert self_check.same_bits(flat, both.index_fill(0, indices, 0.0)) and len(turns) == 2


def test_programs_leave_room_for_what_runs_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "at_once", lambda device: 132)
    assert together.programs_for(torch.device("cuda"), 1000) == 99
    assert together.programs_for(torch.device("cuda"), 16) == 16
