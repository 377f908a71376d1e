"""Data, loss and metric of the small tasks: formats good and bad, scores against independent ones, shards, hashes."""

import json
import math
import re
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.core.registry import TASKS
from benchmarks.data.squad import read_squad
from benchmarks.training.tasks import bytepairs
from benchmarks.training.tasks.bytepairs import BytePairs, blocks, encode, frequent_pairs, package_files
from benchmarks.training.tasks.questions import FACTS, LENGTH, Questions, best_spans, collate, make_squad, names
from benchmarks.training.tasks.task import Setting
from resireduce.scheme import load
from tests.unit.training.test_synthetic_tasks import SETTINGS
from tests.unit.training.test_synthetic_tasks import make as make_synthetic

LOCAL = ("digits", "bytes", "questions")
"""Tasks whose data come with installed packages."""


def make(name: str, phase: str = "train"):
    return load(TASKS[name])(Setting(phase=phase))


@pytest.fixture(scope="module")
def tasks():
    return {name: make(name) for name in LOCAL} | {data: make_synthetic(data) for data in SETTINGS}


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


@pytest.mark.parametrize("name", LOCAL)
def test_data_are_the_same_each_time_and_differ_between_phases(name, tasks):
    again = make(name)
    assert again.data_hash == tasks[name].data_hash and re.fullmatch("[0-9a-f]{64}", again.data_hash)
    both, second = again.batch(torch.tensor([3, 1])), tasks[name].batch(torch.tensor([1]))
    assert all(len(both[key]) == 2 and torch.equal(both[key][1:], tensor) for key, tensor in second.items())
    if name != "digits":
        assert make(name, "pretrain").data_hash != tasks[name].data_hash


@pytest.mark.parametrize("name", [*LOCAL, *SETTINGS])
def test_loss_is_the_mean_over_the_batch(name, tasks):
    task, model = tasks[name], Guess(name)
    parts = [task.loss(model, task.batch(torch.tensor([index]))).item() for index in (5, 6, 7)]
    whole = task.loss(model, task.batch(torch.tensor([5, 6, 7]))).item()
    assert whole == pytest.approx(sum(parts) / 3, rel=1e-5)


@pytest.mark.parametrize("name", [*LOCAL, *SETTINGS])
def test_metric_does_not_depend_on_the_number_of_ranks(name, tasks):
    task, model = tasks[name], Guess(name)
    alone = task.evaluate(model, 0, 1)
    assert model.training and model.weight.grad is None
    assert alone.dtype == torch.float64 and task.metric in task.metrics_from(alone)
    for world_size in (2, 3, 7):
        summed = sum(task.evaluate(model, rank, world_size) for rank in range(world_size))
        assert summed[-1] == alone[-1], "every held-out sample counts once"
        assert task.metrics_from(summed) == pytest.approx(task.metrics_from(alone), rel=1e-6)


# Digits


def test_digits_are_those_of_scikit_learn(tasks):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    task = tasks["digits"].source
    assert task.samples + len(task.test_labels) == len(labels)
    assert torch.equal(task.images[:3, 0], torch.tensor(images[:3].reshape(3, 8, 8) / 8 - 1, dtype=torch.float32))
    assert task.test_labels.tolist() == labels[3::4].tolist()
    assert set(task.test_labels.tolist()) == set(range(10))


# Byte pairs


def slow_encode(text: bytes, pairs: list[int]) -> list[int]:
    symbols, place = [], 0
    while place < len(text):
        pair = 256 * text[place] + text[place + 1] if place + 1 < len(text) else -1
        symbols.append(256 + pairs.index(pair) if pair in pairs else text[place])
        place += 2 if pair in pairs else 1
    return symbols


@given(st.text("abc", max_size=40), st.lists(st.tuples(*[st.sampled_from(b"abc")] * 2), unique=True, max_size=9))
def test_encoding_is_greedy_from_the_left(text, pairs):
    values = [256 * first + second for first, second in pairs]
    symbols = encode(text.encode(), np.array(values, dtype=np.int64))
    assert symbols.tolist() == slow_encode(text.encode(), values)
    spelled = b"".join(bytes(pairs[s - 256]) if s >= 256 else bytes([s]) for s in symbols)
    assert spelled == text.encode()


def test_frequent_pairs_are_counted_and_ties_ordered():
    text = b"ababab ba"
    counted = Counter(pairwise(text))
    expected = sorted(counted, key=lambda pair: (-counted[pair], pair))
    assert [divmod(value, 256) for value in frequent_pairs(text, 3).tolist()] == expected[:3]


def test_blocks_predict_every_symbol_once():
    rows = blocks(np.arange(2 * bytepairs.CONTEXT + 10))
    assert rows.shape == (2, bytepairs.CONTEXT + 1)
    assert rows[:, 1:].flatten().tolist() == list(range(1, 2 * bytepairs.CONTEXT + 1))
    assert torch.equal(rows[:, :-1] + 1, rows[:, 1:])


def test_held_out_files_are_not_trained_on():
    files = package_files(bytepairs.PACKAGES["train"])
    train, test = BytePairs(Setting()).texts
    assert len(train) + len(test) == sum(map(len, files))
    assert files[0] in test
    assert files[1] in train


def test_perplexity_is_weighted_by_symbols(tasks):
    task, model = tasks["bytes"], Guess("bytes")
    logits = model(input_ids=task.test[:, :-1]).logits.double().log_softmax(-1)
    losses = -logits.gather(-1, task.test[:, 1:, None])
    assert task.metrics_from(task.evaluate(model, 0, 1))[task.metric] == pytest.approx(
        math.exp(losses.mean().item()), rel=1e-5
    )
    assert task.metrics_from(torch.tensor([3 * math.log(5.0), 3.0]))[task.metric] == pytest.approx(5.0)


# Questions: the format


def document(**change) -> dict:
    answer = {"text": "Rome", "answer_start": 10}
    qas = {"id": "q1", "question": "Where ?", "answers": [answer]}
    paragraph = {"context": "He was in Rome in 1900 .", "qas": [qas]}
    for key, value in change.items():
        target = next(part for part in (answer, qas, paragraph) if key in part)
        if value is None:
            del target[key]
        else:
            target[key] = value
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "are not JSON"),
        ('{"data": {}}', "the document: 'data' is {}, allowed is a JSON value of type list"),
        (json.dumps(document(context=None)), "article 0, paragraph 0 has no 'context'"),
        (json.dumps(document(answers=[])), "question 'q1' has an empty list of 'answers'"),
        (json.dumps(document(answer_start=11)), "question 'q1': 'answer_start' is 11"),
        (json.dumps(document(text="")), "the context does not have ''"),
    ],
)
def test_bad_document_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_squad(text)
    assert "\n" not in str(caught.value)


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


def test_best_span_against_trying_all():
    generator = torch.Generator().manual_seed(1)
    starts, ends = torch.randn(2, 20, 9, generator=generator)
    mask = (torch.rand(20, 9, generator=generator) < 0.7).long()
    mask[:, 4] = 1
    for row_number, found in enumerate(best_spans(starts, ends, mask, longest=3).tolist()):
        spans = [
            (i, j) for i in range(9) for j in range(i, min(9, i + 3)) if mask[row_number, i] and mask[row_number, j]
        ]
        best = max(spans, key=lambda span: float(starts[row_number, span[0]] + ends[row_number, span[1]]))
        assert tuple(found) == best


class Oracle(nn.Module):
    """Points at the right span of every held-out question, or one token before its start."""

    def __init__(self, task: Questions, shift: int = 0) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.known = {
            tuple(ids): (start - shift, end)
            for ids, start, end in zip(
                task.test["input_ids"].tolist(), task.test["starts"].tolist(), task.test["ends"].tolist(), strict=True
            )
        }

    def forward(self, *, input_ids, token_type_ids, attention_mask):
        logits = torch.zeros(2, *input_ids.shape)
        for place, ids in enumerate(input_ids.tolist()):
            start, end = self.known[tuple(ids)]
            logits[0, place, start] = logits[1, place, end] = 1
        return SimpleNamespace(start_logits=logits[0], end_logits=logits[1])


def test_right_spans_score_full_marks_and_f1_is_a_mean_over_questions(tasks):
    task = tasks["questions"]
    assert task.metrics_from(task.evaluate(Oracle(task), 0, 1)) == {"f1": 100, "exact_match": 100}
    metrics = task.metrics_from(task.evaluate(Oracle(task, shift=1), 0, 1))
    assert 0 < metrics["exact_match"] < metrics["f1"] < 100


def test_tokens_point_back_into_the_context(tasks):
    task = tasks["questions"]
    for index in range(50):
        question, encoded = task.test_questions[index], task.test_encoded[index]
        assert task.answer(index, encoded.start, encoded.end) == question.answers[0]
    batch = collate(task.test_encoded[:4])
    assert batch["input_ids"].shape == (4, LENGTH)
    assert (batch["context_mask"] <= batch["token_type_ids"]).all()
    assert (batch["token_type_ids"] <= batch["attention_mask"]).all()
    assert task.test["input_ids"].ne(1).all(), "every word is in the vocabulary"
