"""Phases of a step: they add up, what lies within another is counted once, and watching changes no result."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.core.cell import Cell
from benchmarks.training.build import build
from benchmarks.training.measure.phases import NAMES, CudaMarks, PhaseClock
from benchmarks.training.measure.probe import Probe
from benchmarks.training.trainer import Trainer
from resireduce.comm.local import LocalCommunicator
from tests.worlds import same


@dataclass
class Ticks:
    """A clock on which one second passes from one look to the next."""

    now: int = 0
    waits: int = 0

    def mark(self) -> int:
        self.now += 1
        return self.now

    def seconds(self, start: int, end: int) -> float:
        return float(end - start)

    def wait(self) -> None:
        self.waits += 1


def test_a_phase_within_another_is_counted_once_and_a_step_that_fails_not_at_all() -> None:
    clock = PhaseClock(Ticks())
    with pytest.raises(ArithmeticError), clock.step(), clock.phase("compress"):
        raise ArithmeticError
    assert clock.median_seconds() == {}
    with clock.phase("update"):
        pass  # outside of a step: not counted
    with clock.step():
        with clock.phase("forward_backward"):
            with clock.phase("compress"):
                pass
            with clock.phase("decompress"), clock.phase("communicate"):
                pass
        with clock.phase("update"):
            pass
    (step,) = clock.seconds()
    found = {name: seconds for name, seconds in step.items() if seconds}
    each = {"other": 3, "forward_backward": 3, "compress": 1, "decompress": 2, "communicate": 1, "update": 1}
    assert found == {**each, "step": 11} and sum(each.values()) == 11


@dataclass
class FakeEvents:
    """`torch.cuda` as far as events go: a stream on which each event is 2 ms after the one before."""

    recorded: list[object] = field(default_factory=list)
    waits: int = 0

    def Event(self, enable_timing: bool) -> object:
        assert enable_timing, "without it an event has no time"
        events = self

        class Event:
            def record(self, stream: object) -> None:
                assert stream == "stream"
                events.recorded.append(self)

            def elapsed_time(self, end: object) -> float:
                assert events.waits, "asked before the device has come there"
                return 2.0 * (events.recorded.index(end) - events.recorded.index(self))

        return Event()

    def current_stream(self, device: torch.device) -> str:
        return "stream"

    def synchronize(self, device: torch.device) -> None:
        self.waits += 1


def test_on_a_gpu_events_are_recorded_and_nothing_waits_before_the_end() -> None:
    cuda = FakeEvents()
    clock = PhaseClock(CudaMarks(torch.device("cuda", 0), cuda))
    for _ in range(3):
        with clock.step(), clock.phase("compress"):
            pass
    assert cuda.waits == 0 and len(cuda.recorded) == 12
    medians = clock.median_seconds()
    assert medians["compress"] == pytest.approx(0.002) and medians["step"] == pytest.approx(0.006)


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(monkeypatch: pytest.MonkeyPatch, gradients: str, observed: int) -> Trainer:
    monkeypatch.setattr("benchmarks.training.measure.probe.OBSERVED_STEPS", observed)
    monkeypatch.setattr("benchmarks.training.trainer.Trainer.evaluate", lambda trainer: {trainer.task.metric: 0.5})
    size = {"world_size": 1, "steps": 2, "batch_per_rank": 4}
    cell = Cell(model="vgg-digits", scheme="w+2d", gradients=gradients, backend="local", **size)
    with torch.random.fork_rng(devices=[]), one_thread():
        trainer = build(cell, LocalCommunicator(), None, Path("data"))
        trainer.train()
    return trainer


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_phases_of_a_cell_add_up_and_watching_changes_no_bit(monkeypatch: pytest.MonkeyPatch, gradients: str) -> None:
    watched, unwatched = (trained(monkeypatch, gradients, observed) for observed in (50, 0))
    assert same(watched.model, unwatched.model)
    assert unwatched.probe.phases.median_seconds() == {}
    steps = watched.probe.phases.seconds()
    assert len(steps) == 1, "half of a short run is warm-up"
    for step, whole in zip(steps, watched.clock.step_seconds[1:], strict=True):
        assert sum(step[name] for name in NAMES) == pytest.approx(step["step"], rel=1e-6)
        assert step["step"] >= whole, "the clock of whole steps runs within"
        assert all(step[name] > 0 for name in NAMES)
    assert "compress" not in vars(watched.optimizer.feedback)


def test_the_probe_counts_the_steps_of_this_process() -> None:
    probe = Probe()
    probe.start(steps=100)
    optimizer = SimpleNamespace(parts={})
    for _ in range(12):
        with probe.step(optimizer):  # type: ignore[arg-type]
            pass
    assert len(probe.phases.seconds()) == 2 and probe.meter.window == "steady"
    with probe.evaluation():
        assert probe.meter.window == "evaluation"
    assert probe.meter.window == "steady"
