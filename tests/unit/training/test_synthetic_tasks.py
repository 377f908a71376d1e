"""Random inputs of the large tasks: shapes, ranges, the same each time. Losses and metrics: test_tasks.py."""

import re

import pytest
import torch

from benchmarks.core.registry import TASKS
from benchmarks.core.workloads import PAPER, READMES
from benchmarks.training.tasks.task import Setting
from resireduce.scheme import load

SETTINGS = {
    "cifar10": ("cifar", {}, (3, 32, 32), 10),
    "cifar100": ("cifar", {}, (3, 32, 32), 100),
    "imagenet": ("imagenet", {}, (3, 224, 224), 1000),
    "squad": ("squad", {"length": 40}, (40,), 30522),
    "wikitext-2": ("wikitext", {"length": 16}, (16,), 50257),
    "wikitext-103": ("wikitext", {"length": 16}, (16,), 50257),
}


def make(data: str, **change):
    task, options, _, _ = SETTINGS[data]
    return load(TASKS[task])(Setting(data=data, synthetic=True, **{**options, **change}))


def test_every_workload_of_the_paper_and_the_readmes_has_synthetic_inputs():
    for workload in (*PAPER, *READMES):
        setting = Setting(data=workload.data, synthetic=True, length=workload.length)
        task = load(TASKS[workload.task])(setting)
        assert task.units_per_sample == (workload.length or 1)
        batch = task.batch(torch.tensor([0]))
        assert batch.get("input_ids", batch.get("images")).shape[-1] in (workload.length, 32, 224)


@pytest.mark.parametrize("data", SETTINGS)
def test_inputs_have_the_right_shape_and_range(data):
    *_, shape, classes = SETTINGS[data]
    batch = make(data).batch(torch.arange(12))
    inputs = batch.get("images", batch.get("input_ids"))
    assert inputs.shape == (12, *shape)
    discrete = batch.get("labels", batch.get("input_ids"))
    assert discrete.dtype == torch.int64
    assert discrete.min() >= 0 and classes // 3 < discrete.max() < classes


@pytest.mark.parametrize("data", SETTINGS)
def test_samples_are_the_same_each_time_and_depend_on_the_seed(data):
    def first(batch):
        return next(iter(batch.values()))

    task = make(data)
    both = first(task.batch(torch.tensor([3, 1]), step=2))
    assert torch.equal(both[1:], first(task.batch(torch.tensor([1]), step=5)))
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both, first(make(data, seed=1).batch(torch.tensor([3, 1]))))
    assert re.fullmatch("[0-9a-f]{64}", task.data_hash)
    assert task.data_hash == make(data).data_hash != make(data, seed=1).data_hash
