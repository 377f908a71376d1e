"""Random inputs of the large tasks: shapes, ranges, the same each time; and what every such task promises."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

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


class Guess(nn.Module):
    """Outputs of each shape that the tasks ask for, from the input alone."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, generator=torch.Generator().manual_seed(0)))

    def forward(self, x=None, *, input_ids=None, token_type_ids=None, attention_mask=None):
        if x is not None:
            return x.flatten(1)[:, :50].sum(1, keepdim=True) * self.weight
        values = torch.sin(input_ids.float())
        logits = values[..., None] * self.weight if token_type_ids is None else None
        return SimpleNamespace(logits=logits, start_logits=values, end_logits=values.flip(1))


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
    assert re.fullmatch("[0-9a-f]{64}", task.data_hash())
    assert task.data_hash() == make(data).data_hash() != make(data, seed=1).data_hash()


@pytest.mark.parametrize("data", SETTINGS)
def test_loss_is_the_mean_over_the_batch(data):
    task, model = make(data), Guess(SETTINGS[data][-1])
    parts = [task.loss(model, task.batch(torch.tensor([index]))).item() for index in (5, 6, 7)]
    whole = task.loss(model, task.batch(torch.tensor([5, 6, 7]))).item()
    assert whole == pytest.approx(sum(parts) / 3, rel=1e-5)


@pytest.mark.parametrize("data", SETTINGS)
def test_evaluation_is_short_and_does_not_depend_on_the_number_of_ranks(data):
    task, model = make(data), Guess(SETTINGS[data][-1])
    alone = task.evaluate(model, 0, 1)
    assert task.metric in task.metrics_from(alone)
    for world_size in (2, 3):
        summed = sum(task.evaluate(model, rank, world_size) for rank in range(world_size))
        assert summed[-1] == alone[-1]
        assert task.metrics_from(summed) == pytest.approx(task.metrics_from(alone), rel=1e-6)


def test_random_answers_stand_in_their_contexts():
    task = make("squad")
    for index in range(2):
        question, context, (feature,) = task.questions.question(index)
        assert question.context[question.starts[0] :].startswith(question.answers[0])
        first, last = (place - feature.before for place in feature.answer)
        begin, end = context.spans[first, 0], context.spans[last, 1]
        assert question.context[begin:end] == question.answers[0]


@pytest.mark.parametrize(
    ("task", "allowed"), [("cifar", "cifar10, cifar100"), ("wikitext", "wikitext-103, wikitext-2")]
)
def test_data_of_another_task_are_refused(task, allowed):
    with pytest.raises(ValueError, match=f"data: 'squad' is not known; allowed: {allowed}"):
        load(TASKS[task])(Setting(data="squad", synthetic=True))
