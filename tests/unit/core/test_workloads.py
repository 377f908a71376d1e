"""Recipes name what exists, refuse what cannot be trained, and cost no import of torch."""

import dataclasses

import pytest
import torch

from benchmarks.core.registry import MODELS, TASKS
from benchmarks.core.workloads import WORKLOADS, Schedule, Workload

SOME = WORKLOADS["gpt2-bytes"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_names_are_known(name):
    workload = WORKLOADS[name]
    assert workload.model == name
    assert workload.model in MODELS
    assert workload.task in TASKS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "lamb"}, "optimizer is 'lamb', allowed are sgd, plain-sgd, adamw"),
        ({"steps": 0}, "steps is 0"),
        ({"warmup_steps": 10_000}, "warmup_steps is 10000, allowed is less than the training, 200"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        dataclasses.replace(SOME, **change)
    assert "\n" not in str(caught.value)


def rates(**change) -> list[float]:
    workload: Workload = dataclasses.replace(SOME, learning_rate=2.0, steps=8, evaluate_every=8, **change)
    schedule = Schedule(workload, samples=1000, world_size=2)
    return [schedule.learning_rate_at(step) for step in range(8)]


def test_learning_rate_warms_up_then_follows_its_schedule():
    assert rates(schedule="constant") == [2.0] * 8
    assert rates(schedule="linear") == pytest.approx([2 - step / 4 for step in range(8)])
    assert rates(schedule="constant", warmup_steps=4) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0]
    falling = rates(schedule="linear", warmup_steps=4)
    assert falling == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 1.5, 1.0, 0.5])


def test_cosine_schedule_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    expected = []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(schedule="cosine") == pytest.approx(expected)


def test_schedule_ends_with_the_cells_own_number_of_steps():
    workload = dataclasses.replace(SOME, learning_rate=2.0, schedule="linear")
    assert Schedule(workload, 1000, 2, steps_wanted=10).learning_rate_at(5) == pytest.approx(1.0)
