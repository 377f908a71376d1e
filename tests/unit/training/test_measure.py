"""What is measured of a step: every tensor in its band as long as it is alive, and phases that add up."""

import threading
from pathlib import Path

import pytest
import torch

from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import BANDS, POINTS, moments_problem, unpack_moments
from benchmarks.training.build import build
from benchmarks.training.measure.phases import NAMES, PHASES, PhaseClock
from benchmarks.training.measure.tracker import BandTracker, measure_memory
from benchmarks.training.plan_of_cell import plan_of
from benchmarks.training.trainer import Trainer
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from tests.threads import LocalWorld
from tests.worlds import distributed, same


def test_tensors_are_in_their_bands_as_long_as_they_are_alive() -> None:
    parameter, residual = torch.zeros(4, 8), torch.zeros(4, 8)
    held = {"parameters": [parameter], "residuals": [residual]}
    with BandTracker(lambda tensor: True, held, [parameter.shape]) as tracker:
        gradient = torch.ones(4, 8)
        message = torch.ones(5)
        del message
        new = gradient * 2
        del gradient
        tracker.name({"residuals": [new]})
    found = [dict(zip(BANDS, moment, strict=True)) for moment in tracker.moments()]
    assert [moment["gradients"] for moment in found] == [0, 128, 128, 128, 128, 0]
    assert [moment["messages"] for moment in found] == [0, 0, 20, 0, 0, 0]
    assert [moment["residuals"] for moment in found] == [128, 128, 128, 128, 256, 256], "what becomes a state is one"
    assert {(moment["parameters"], moment["optimizer_states"]) for moment in found} == {(128, 0)}
    assert max(map(sum, tracker.moments())) == tracker.peak_bytes


@pytest.mark.parametrize(
    "options",
    [{"gradients": "kept"}, {"gradients": "streamed"}, {"gradients": "streamed", "scheme": "w+2d"}],
    ids=str,
)
def test_the_picture_of_a_cell_is_of_what_it_holds_and_its_fullest_moment_is_the_plans(options: dict) -> None:
    cell = Cell(model="vgg-digits", world_size=1, backend="local", steps=2, **options)
    torch.manual_seed(0)
    trainer = build(cell, LocalCommunicator(), None, Path("data"))
    batch = trainer.batch(next(trainer.indices()), 0)
    trainer.train_step(0, batch)
    measured = measure_memory(trainer.optimizer, lambda: trainer.task.loss(trainer.model, batch), trainer.model)
    assert moments_problem({"rank": 0, **measured["moments"]}, measured["peak_states_bytes"]) is None
    moments = unpack_moments(measured["moments"])
    assert 50 < len(moments) <= min(POINTS, measured["moments"]["changes"])
    states = [measured[f"{name}_bytes"] for name in ("parameters", "optimizer_states", "residuals")]
    assert [*moments[0][:3]] == states and sum(moments[0][3:]) < 0.01 * sum(states), "no gradient has come yet"
    planned = plan_of(cell)["peak_states"]
    assert abs(max(map(sum, moments)) - planned) < 0.005 * planned


def test_a_message_that_another_thread_lets_go_of_a_moment_later_is_in_no_peak() -> None:
    message = [torch.zeros(100)]
    with BandTracker(lambda _: True, {"messages": message}, [], others=True) as tracker:
        threading.Timer(0.001, message.clear).start()
        after = torch.zeros(100)
    assert tracker.peak_bytes == after.nbytes


def trained(monkeypatch: pytest.MonkeyPatch, gradients: str, observed: int) -> Trainer:
    monkeypatch.setattr("benchmarks.training.measure.probe.OBSERVED_STEPS", observed)
    monkeypatch.setattr("benchmarks.training.trainer.Trainer.evaluate", lambda trainer: {trainer.task.metric: 0.5})
    size = {"world_size": 1, "steps": 2, "batch_per_rank": 4}
    cell = Cell(model="vgg-digits", scheme="w+2d", gradients=gradients, backend="local", **size)
    trainer = build(cell, LocalCommunicator(), None, Path("data"))
    trainer.train()
    return trainer


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_phases_of_a_cell_add_up_and_watching_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, own_settings: None, gradients: str
) -> None:
    torch.set_num_threads(1)
    watched, unwatched = (trained(monkeypatch, gradients, observed) for observed in (50, 0))
    assert same(watched.model, unwatched.model)
    assert unwatched.probe.phases.median_seconds() == {}
    steps = watched.probe.phases.seconds()
    assert len(steps) == 1, "half of a short run is warm-up"
    for step, whole in zip(steps, watched.step_seconds[1:], strict=True):
        assert sum(step[name] for name in NAMES) == pytest.approx(step["step"], rel=1e-6)
        assert step["step"] >= whole, "the clock of whole steps runs within"
        assert all(step[name] > 0 for name in NAMES)
    assert "compress" not in vars(watched.optimizer.feedback)


@pytest.mark.parametrize("hierarchy", ["flat", [[0, 1], [2, 3]]])
def test_the_library_has_all_methods_that_phases_consist_of(hierarchy: object) -> None:
    def rank(communicator: Communicator) -> set[str]:
        model = torch.nn.Linear(120, 120)
        with distributed(model, backend=communicator, hierarchy=hierarchy) as optimizer:
            clock = PhaseClock()
            with clock.step(optimizer):
                model(torch.ones(2, 120)).sum().backward()
                optimizer.step()
        return {name for name, seconds in clock.seconds()[0].items() if seconds > 0}

    for timed in LocalWorld(4).run(rank):
        assert {*PHASES} <= timed
