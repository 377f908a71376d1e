"""SQuAD: tokens, windows, answers from logits against a plain reading of the rules, and the official scores."""

import random
import re
import string
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.data.squad import Question, exact_match, f1
from benchmarks.training.tasks.questions import scores
from benchmarks.training.tasks.squad_task import (
    Squad,
    Text,
    answer_text,
    best_span,
    collate,
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
        ("in (1895-1943).", "1943", ["1943"]),
        ("the Japanese", "Japan", ["japan"]),
        ("the steamship", "ship", ["steam", "##ship"]),
        ("the steamship", "team", ["steam", "##ship"]),
        ("in the cafe\u202fin japan", "cafe", ["cafe"]),
        ("Café in Japan", "Café in Japan", ["cafe", "in", "japan"]),
    ],
)
def test_an_answer_is_its_own_tokens_or_those_of_the_words_it_touches(tokenizer, context, answer, spelled):
    text, own = tokenize(tokenizer, [context, answer])
    first, last = find_answer(ask(context, answer), text, own.ids)
    assert [tokenizer.id_to_token(int(number)) for number in text.ids[first : last + 1]] == spelled


# Windows


def plain_windows(tokens: int, size: int, stride: int) -> list[tuple[int, int]]:
    found, start = [], 0
    while start < tokens:
        length = min(size, tokens - start)
        found.append((start, length))
        if start + length == tokens:
            break
        start += min(length, stride)
    return found


def plain_has_most_context(parts: list[tuple[int, int]], number: int, position: int) -> bool:
    best, which = None, None
    for index, (start, length) in enumerate(parts):
        if start <= position < start + length:
            score = min(position - start, start + length - 1 - position) + 0.01 * length
            if best is None or score > best:
                best, which = score, index
    return which == number


@pytest.mark.parametrize("case", range(20))
def test_windows_and_most_context_agree_with_a_plain_reading(case):
    chance = random.Random(case)
    tokens, size, stride = chance.randint(1, 90), chance.randint(1, 40), chance.randint(1, 30)
    if case % 2:  # 0.01 for each token of a window matters where one is a hundred longer than another
        tokens, size, stride = chance.randint(300, 500), chance.randint(200, 290), 128
    found, plain = windows(tokens, size, stride), plain_windows(tokens, size, stride)
    assert [(part.start, len(part)) for part in found] == plain
    best = most_context(found, tokens)
    for number, (start, length) in enumerate(plain):
        for position in range(start, start + length):
            assert (best[position] == number) == plain_has_most_context(plain, number, position)


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
    batch = collate(features, 205, cls=2, sep=3)
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


@pytest.mark.parametrize("case", range(20))
def test_the_best_span_agrees_with_a_plain_reading(case):
    generator = np.random.default_rng(case)
    length, tokens = int(generator.integers(40, 120)), int(generator.integers(1, 300))
    features = make_features(np.arange(int(generator.integers(1, 12)), dtype=np.int32), numbered(tokens), None, length)
    starts, ends = generator.standard_normal((2, len(features), length)).astype(np.float32).round(case % 3)
    assert best_span(features, starts, ends) == plain_best(features, starts, ends)


def test_without_a_valid_span_the_answer_is_empty():
    features = make_features(np.arange(30, dtype=np.int32), numbered(2), None, 64)
    logits = np.zeros((1, 64), dtype=np.float32)
    assert best_span(features, logits, logits) is None, "the twenty largest logits are all in the question"
    assert answer_text(ask("0 1", "0"), numbered(2), None) == ""


# The official scores, written down a second time: by characters and sorted lists instead of translation and counters


def plain_words(text: str) -> list[str]:
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return [word for word in re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", kept)) if word]


def plain_f1(prediction: str, answer: str) -> float:
    predicted, left = plain_words(prediction), plain_words(answer)
    total, common = len(left), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / total
    return 2 * precision * recall / (precision + recall)


SPELLED = "the The a an An theatre cat Cat. U.S. U.S naïve NAÏVE 漢字 don't dont -- … “quoted” 'quoted' £5 5"
WORDS = [*SPELLED.split(), "", "\u00a0", "\u202f", "é", "e\u0301", "İstanbul", "ß", "a.", "the-end"]


@pytest.mark.parametrize("case", range(20))
def test_scores_agree_with_an_independent_reading(case):
    chance = random.Random(case)

    def text() -> str:
        return chance.choice([" ", "  ", "\n", ", "]).join(chance.choices(WORDS, k=chance.randint(0, 5)))

    prediction, answers = text(), tuple(text() for _ in range(3))
    if case % 4 == 0:
        prediction = chance.choice(answers).upper() + chance.choice(["", ".", " the"])
    for answer in answers:
        assert exact_match(prediction, answer) == (" ".join(plain_words(prediction)) == " ".join(plain_words(answer)))
        assert f1(prediction, answer) == pytest.approx(plain_f1(prediction, answer))
    question = Question(id="q", question="", context="", answers=answers, starts=(0, 0, 0))
    best_f1 = max(plain_f1(prediction, answer) for answer in answers)
    best_match = max(plain_words(prediction) == plain_words(answer) for answer in answers)
    assert list(scores(question, prediction)) == pytest.approx([best_f1, float(best_match), 1.0])


# The task


def document(count: int, repeat: int, seed: int) -> dict:
    """Questions on contexts of letters and numbers, some long."""
    chance = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = ["".join(chance.choices("abcdefg", k=3)) for _ in range(repeat * (number % 3 + 1))]
        words[len(words) // 2] = f"key{number}é"
        context = " ".join(words)
        answer = {"text": words[len(words) // 2], "answer_start": context.index(words[len(words) // 2])}
        qas = [{"id": f"{seed}-{number}", "question": f"where is {number} ?", "answers": [answer]}]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    save_squad(folder, document(6, 10, 1), document(9, 30, 2), [*VOCABULARY, *LETTERS])
    return folder


@pytest.fixture(scope="module")
def squad(root):
    return Squad(Setting(data="squad", root=root, length=64))


class Oracle(nn.Module):
    """Points at the right answer in the window that may give it, at nothing elsewhere."""

    def __init__(self, task: Squad) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.known = {}
        for index in range(task.questions.held_out):
            question, context, features = task.questions.question(index)
            begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
            (touched,) = np.nonzero((context.spans[:, 0] < end) & (context.spans[:, 1] > begin))
            rows = task.collate(features)["input_ids"].tolist()
            for feature, row in zip(features, rows, strict=True):
                shift = feature.before - feature.first
                self.known[tuple(row)] = (int(touched[0]) + shift, int(touched[-1]) + shift, len(row))

    def forward(self, *, input_ids, token_type_ids, attention_mask):
        logits = torch.zeros(2, *input_ids.shape)
        for place, ids in enumerate(input_ids.tolist()):
            start, end, length = self.known[tuple(ids)]
            if 0 <= start <= end < length:
                logits[0, place, start] = logits[1, place, end] = 1
        return SimpleNamespace(start_logits=logits[0], end_logits=logits[1])


def test_right_spans_score_full_marks_and_each_question_counts_once(squad):
    model = Oracle(squad)
    assert any(len(squad.questions.question(index)[2]) > 2 for index in range(9)), "some have several windows"
    for world_size in (1, 2, 4, 12):
        sums = sum(squad.evaluate(model, rank, world_size) for rank in range(world_size))
        assert sums[2] == 9
        assert squad.metrics_from(sums) == {"f1": 100, "exact_match": 100}
