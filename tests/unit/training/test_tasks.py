"""Data, loss and metric of the small tasks and of random inputs: formats, scores against independent ones, hashes."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.core.registry import TASKS
from benchmarks.data.squad import read_squad
from benchmarks.training.tasks.questions import FACTS, make_squad, names
from benchmarks.training.tasks.task import Setting
from benchmarks.training.tasks.texts import CONTEXT, PACKAGES, BytePairs, blocks, encode, package_files
from resireduce.scheme import load
from tests.unit.training.test_squad_task import Oracle

LOCAL = ("digits", "bytes", "questions")
"""Tasks whose data come with installed packages."""

SETTINGS = {
    "cifar10": ("cifar", {}, (3, 32, 32), 10),
    "cifar100": ("cifar", {}, (3, 32, 32), 100),
    "imagenet": ("imagenet", {}, (3, 224, 224), 1000),
    "squad": ("squad", {"length": 40}, (40,), 30522),
    "wikitext-2": ("wikitext", {"length": 16}, (16,), 50257),
    "wikitext-103": ("wikitext", {"length": 16}, (16,), 50257),
}


def make(name: str, phase: str = "train", seed: int = 0):
    if name in LOCAL:
        return load(TASKS[name])(Setting(phase=phase))
    task, options, _, _ = SETTINGS[name]
    return load(TASKS[task])(Setting(data=name, synthetic=True, seed=seed, **options))


@pytest.fixture(scope="module")
def tasks():
    return {name: make(name) for name in (*LOCAL, *SETTINGS)}


class Guess(nn.Module):
    """Outputs of each form that tasks ask for, from the input alone, so that scores are neither best nor worst."""

    def __init__(self, task: str) -> None:
        super().__init__()
        classes = SETTINGS[task][-1] if task in SETTINGS else {"digits": 10, "bytes": 1024, "questions": 2}[task]
        self.weight = nn.Parameter(torch.randn(classes, generator=torch.Generator().manual_seed(0)))

    def forward(self, x=None, *, input_ids=None, token_type_ids=None, attention_mask=None):
        if x is not None:
            return x.flatten(1)[:, :50].sum(1, keepdim=True) * self.weight
        values = torch.sin(input_ids.float())
        logits = values[..., None] * self.weight if token_type_ids is None else None
        return SimpleNamespace(logits=logits, start_logits=values, end_logits=torch.cos(3 * values))


# Every task


@pytest.mark.parametrize("name", [*LOCAL, *SETTINGS])
def test_data_are_the_same_each_time_and_differ_between_phases_or_seeds(name, tasks):
    again, task = make(name), tasks[name]
    assert again.data_hash == task.data_hash and re.fullmatch("[0-9a-f]{64}", again.data_hash)
    both, second = again.batch(torch.tensor([3, 1]), step=2), task.batch(torch.tensor([1]), step=5)
    assert all(len(both[key]) == 2 and torch.equal(both[key][1:], tensor) for key, tensor in second.items())
    if name != "digits":
        other = make(name, phase="pretrain", seed=1)
        assert other.data_hash != task.data_hash
        assert any(not torch.equal(both[key], tensor) for key, tensor in other.batch(torch.tensor([3, 1])).items())


@pytest.mark.parametrize("name", SETTINGS)
def test_random_inputs_have_the_right_shape_and_range(name, tasks):
    *_, shape, classes = SETTINGS[name]
    batch = tasks[name].batch(torch.arange(12))
    assert batch.get("images", batch.get("input_ids")).shape == (12, *shape)
    discrete = batch.get("labels", batch.get("input_ids"))
    assert discrete.dtype == torch.int64
    assert discrete.min() >= 0 and classes // 3 < discrete.max() < classes


@pytest.mark.parametrize("name", [*LOCAL, *SETTINGS])
def test_loss_is_a_mean_over_the_batch_and_no_metric_depends_on_the_number_of_ranks(name, tasks):
    task, model = tasks[name], Guess(name)
    parts = [task.loss(model, task.batch(torch.tensor([index]))).item() for index in (5, 6, 7)]
    whole = task.loss(model, task.batch(torch.tensor([5, 6, 7]))).item()
    assert whole == pytest.approx(sum(parts) / 3, rel=1e-5)
    alone = task.evaluate(model, 0, 1)
    assert model.training and model.weight.grad is None
    assert alone.dtype == torch.float64 and task.metric in task.metrics_from(alone)
    for world_size in (2, 7):
        summed = sum(task.evaluate(model, rank, world_size) for rank in range(world_size))
        assert summed[-1] == alone[-1], "every held-out sample counts once"
        assert task.metrics_from(summed) == pytest.approx(task.metrics_from(alone), rel=1e-6)


# Digits


def test_digits_are_those_of_scikit_learn(tasks):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    task = tasks["digits"].source
    assert task.samples + len(task.test["labels"]) == len(labels)
    assert torch.equal(
        task.train["images"][:3, 0], torch.tensor(images[:3].reshape(3, 8, 8) / 8 - 1, dtype=torch.float32)
    )
    assert task.test["labels"].tolist() == labels[3::4].tolist()
    assert set(task.test["labels"].tolist()) == set(range(10))


# Byte pairs


@given(st.text("abc", max_size=40), st.lists(st.tuples(*[st.sampled_from(b"abc")] * 2), unique=True, max_size=9))
def test_encoding_is_greedy_from_the_left(text, pairs):
    values, expected, place = [256 * first + second for first, second in pairs], [], 0
    while place < len(text):
        pair = tuple(text.encode()[place : place + 2])
        expected.append(256 + pairs.index(pair) if pair in pairs else ord(text[place]))
        place += 2 if pair in pairs else 1
    assert encode(text.encode(), np.array(values, dtype=np.int64)).tolist() == expected


def test_blocks_predict_every_symbol_once_and_held_out_files_are_not_trained_on():
    rows = blocks(np.arange(2 * CONTEXT + 10))
    assert rows.shape == (2, CONTEXT + 1)
    assert rows[:, 1:].flatten().tolist() == list(range(1, 2 * CONTEXT + 1))
    assert torch.equal(rows[:, :-1] + 1, rows[:, 1:])
    files = package_files(PACKAGES["train"])
    train, test = BytePairs(Setting()).texts
    assert len(train) + len(test) == sum(map(len, files))
    assert files[0] in test and files[1] in train


# Questions: the format


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], "question 'q1' has no answers"),
        ([{"text": "Rome", "answer_start": 11}], "question 'q1': the context does not have 'Rome' at 11"),
    ],
)
def test_bad_document_is_refused(answers, message):
    paragraph = {
        "context": "He was in Rome .",
        "qas": [{"id": "q1", "question": "Where ?", "answers": answers}],
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        read_squad(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))


@pytest.mark.parametrize("domain", FACTS)
def test_made_documents_are_squad_and_right(domain):
    made = make_squad(domain, 300, seed=7)
    assert made == make_squad(domain, 300, seed=7)
    assert made != make_squad(domain, 300, seed=8)
    questions = read_squad(json.dumps(made))
    assert len(questions) == 300
    for question in questions:
        subject = next(word for word in question.question.split() if word.capitalize() in names(domain))
        sentence_start = question.context.rfind(" . ", 0, question.starts[0]) + 1
        sentence = question.context[sentence_start : question.context.find(" .", question.starts[0])]
        assert subject in sentence.split(), "the answer stands in a sentence on the subject that is asked about"


# Questions: the scores


def test_right_spans_score_full_marks_and_f1_is_a_mean_over_questions(tasks):
    task = tasks["questions"]
    assert task.metrics_from(task.evaluate(Oracle(task), 0, 1)) == {"f1": 100, "exact_match": 100}
    metrics = task.metrics_from(task.evaluate(Oracle(task, shift=1), 0, 1))
    assert 0 < metrics["exact_match"] < metrics["f1"] < 100
