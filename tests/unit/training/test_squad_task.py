"""SQuAD: tokens, windows, answers from logits against a plain reading of the rules, and the official scores."""

import random
import string
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.data.squad import Question
from benchmarks.training.tasks.questions import Asked, SpanAnswering, scores
from benchmarks.training.tasks.squad_task import (
    Squad,
    Text,
    best_span,
    find_answer,
    make_features,
    make_tokenizer,
    most_context,
    tokenize,
    windows,
)
from benchmarks.training.tasks.task import Setting
from tests.prepared import SPECIAL, save_squad

VOCABULARY = ["(", ")", "-", "1895", "1943", "japan", "##ese", "cafe", "the", "##s", "steam", "##ship", "in", ".", "?"]
LETTERS = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *VOCABULARY, *LETTERS]))
    return make_tokenizer(str(path))


def ask(context: str, answer: str, start: int | None = None) -> Question:
    where = context.index(answer) if start is None else start
    return Question(id="q", question="where ?", context=context, answers=(answer,), starts=(where,))


# Tokens


def test_tokens_are_lower_case_pieces_that_know_their_characters(tokenizer):
    context = "The Café,  in\u00a0JAPANESE 漢."
    (text,) = tokenize(tokenizer, [context])
    spelled = [tokenizer.id_to_token(int(number)) for number in text.ids]
    assert spelled == ["the", "cafe", "[UNK]", "in", "japan", "##ese", "[UNK]", "."]
    assert [context[begin:end] for begin, end in text.spans] == ["The", "Café", ",", "in", "JAPAN", "ESE", "漢", "."]


@pytest.mark.parametrize(
    ("context", "answer", "spelled"),
    [
        ("in ( 1895-1943 ) .", "1895", ["1895"]),
        ("the Japanese", "Japan", ["japan"]),
        ("the steamship", "ship", ["steam", "##ship"]),
        ("in the cafe\u202fin japan", "cafe", ["cafe"]),
        ("Café in Japan", "Café in Japan", ["cafe", "in", "japan"]),
    ],
)
def test_an_answer_is_its_own_tokens_or_those_of_the_words_it_touches(tokenizer, context, answer, spelled):
    text, own = tokenize(tokenizer, [context, answer])
    first, last = find_answer(ask(context, answer), text, own.ids)
    assert [tokenizer.id_to_token(int(number)) for number in text.ids[first : last + 1]] == spelled


# Windows


@pytest.mark.parametrize("case", range(10))
def test_windows_and_most_context_agree_with_a_plain_reading(case):
    chance = random.Random(case)
    tokens, size, stride = chance.randint(1, 90), chance.randint(1, 40), chance.randint(1, 30)
    if case % 2:  # 0.01 for each token of a window matters where one is a hundred longer than another
        tokens, size, stride = chance.randint(300, 500), chance.randint(200, 290), 128
    found, step = windows(tokens, size, stride), min(size, stride)
    plain = [(start, min(size, tokens - start)) for start in range(0, max(tokens - size, 0) + step, step)]
    assert [(part.start, len(part)) for part in found] == plain
    best = most_context(found, tokens)
    for position in range(tokens):
        around = [min(position - start, start + length - 1 - position) for start, length in plain]
        contexts = [(it + 0.01 * length if it >= 0 else -1) for it, (_, length) in zip(around, plain, strict=True)]
        assert best[position] == contexts.index(max(contexts)), "the first of the best"


def numbered(tokens: int) -> Text:
    """A context whose token n is the text of n, so that an answer tells where it comes from."""
    words = [str(number) for number in range(tokens)]
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    spans = np.stack([ends - [len(word) for word in words], ends], axis=1)
    return Text(np.arange(10, 10 + tokens, dtype=np.int32), spans.astype(np.int32))


def test_a_long_context_gives_several_features_and_only_whole_answers_are_marked():
    question = np.array([5, 6], dtype=np.int32)
    features = make_features(question, numbered(400), (200, 205), length=205)
    assert [(feature.first, len(feature.context)) for feature in features] == [(0, 200), (128, 200), (256, 144)]
    assert [feature.answer for feature in features] == [(0, 0), (4 + 72, 4 + 77), (0, 0)]
    batch = Asked.collate(SimpleNamespace(length=205, cls=2, sep=3), features)
    assert batch["input_ids"][0, :5].tolist() == [2, 5, 6, 3, 10]
    assert batch["input_ids"][2, 147:150].tolist() == [10 + 399, 3, 0]
    assert batch["input_ids"][1, batch["starts"][1]] == 10 + 200
    assert batch["token_type_ids"].sum(1).tolist() == [201, 201, 145]
    assert batch["attention_mask"].sum(1).tolist() == [205, 205, 149]
    owners = np.zeros(400, dtype=int)
    for feature in features:
        owners[feature.first : feature.first + len(feature.context)] += feature.eligible
    assert (owners == 1).all(), "each token can begin an answer in one window"


# From logits to an answer


def plain_best(features, starts, ends) -> tuple[int, int] | None:
    """All candidates by the rules, one after the other, then the best by a stable sort."""
    candidates = []
    for feature, start_row, end_row in zip(features, starts, ends, strict=True):
        order = [sorted(range(len(row)), key=lambda place, row=row: -row[place])[:20] for row in (start_row, end_row)]
        in_window = range(feature.before, feature.before + len(feature.context))
        for start in order[0]:
            for end in order[1]:
                if start not in in_window or end not in in_window or not feature.eligible[start - feature.before]:
                    continue
                if start <= end <= start + 29:
                    shift = feature.first - feature.before
                    score = float(start_row[start]) + float(end_row[end])
                    candidates.append((score, (start + shift, end + shift)))
    return sorted(candidates, key=lambda one: -one[0])[0][1] if candidates else None


@pytest.mark.parametrize("case", range(10))
def test_the_best_span_agrees_with_a_plain_reading(case):
    generator = np.random.default_rng(case)
    length, tokens = int(generator.integers(40, 120)), int(generator.integers(1, 300))
    features = make_features(np.arange(int(generator.integers(1, 12)), dtype=np.int32), numbered(tokens), None, length)
    starts, ends = generator.standard_normal((2, len(features), length)).astype(np.float32).round(case % 3)
    assert best_span(features, starts, ends) == plain_best(features, starts, ends)


# The official scores


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("The Cat.", ("dog", "a cat"), (1.0, 1)),
        ("U.S.", ("us",), (1.0, 1)),
        ("naïve", ("naive",), (0.0, 0)),
        ("don't  go", ("dont\u00a0go",), (1.0, 1)),
        ("the theatre", ("theatre now", "x"), (2 / 3, 0)),
        ("cat cat dog", ("cat dog dog",), (2 / 3, 0)),
        ("“quoted”", ("quoted",), (0.0, 0)),
        ("the", ("a",), (0.0, 1)),
    ],
)
def test_scores_are_the_official_ones(prediction, answers, expected):
    question = Question(id="q", question="", context="", answers=answers, starts=(0,) * len(answers))
    assert list(scores(question, prediction)) == pytest.approx([*expected, 1])


# The task


def document(count: int, repeat: int, seed: int) -> dict:
    """Questions on contexts of letters and numbers, some long."""
    chance = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = ["".join(chance.choices("abcdefg", k=3)) for _ in range(repeat * (number % 3 + 1))]
        words[len(words) // 2] = f"key{number}é"
        context = " ".join(words)
        answer = {"text": f"key{number}é", "answer_start": context.index("key")}
        qas = [{"id": f"{seed}-{number}", "question": f"where is {number} ?", "answers": [answer]}]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


class Oracle(nn.Module):
    """Points at the right answer, or at `shift` tokens before it, in windows that have it, at nothing elsewhere."""

    def __init__(self, task: SpanAnswering, shift: int = 0) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.known = {}
        for index in range(task.source.held_out):
            question, context, features = task.source.question(index)
            begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
            (touched,) = np.nonzero((context.spans[:, 0] < end) & (context.spans[:, 1] > begin))
            rows = task.source.collate(features)["input_ids"].tolist()
            for feature, row in zip(features, rows, strict=True):
                place = feature.before - feature.first
                self.known[tuple(row)] = (int(touched[0]) + place - shift, int(touched[-1]) + place, len(row))

    def forward(self, *, input_ids, token_type_ids, attention_mask):
        logits = torch.zeros(2, *input_ids.shape)
        for place, ids in enumerate(input_ids.tolist()):
            start, end, length = self.known[tuple(ids)]
            if 0 <= start <= end < length:
                logits[0, place, start] = logits[1, place, end] = 1
        return SimpleNamespace(start_logits=logits[0], end_logits=logits[1])


def test_right_spans_score_full_marks_and_each_question_counts_once(tmp_path):
    save_squad(tmp_path, document(6, 10, 1), document(9, 30, 2), [*VOCABULARY, *LETTERS])
    squad = Squad(Setting(data="squad", root=tmp_path, length=64))
    model = Oracle(squad)
    assert any(len(squad.source.question(index)[2]) > 2 for index in range(9)), "some have several windows"
    for world_size in (1, 2, 12):
        sums = sum(squad.evaluate(model, rank, world_size) for rank in range(world_size))
        assert sums[2] == 9
        assert squad.metrics_from(sums) == {"f1": 100, "exact_match": 100}
