"""Answer questions by a span of the context: documents in SQuAD v1.1 format that the project makes; metric: F1.

Two domains share the kind of problem (find the sentence about the right subject, copy the right span) but no name, and
few words of their templates: "lives" for pretraining, "towns" for training.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.data.squad import Question, exact_match, f1, read_squad
from benchmarks.training.tasks.task import Batch, Phase, Setting, Source, Task, sha256

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
Tokens = NDArray[np.int32]


class Text(NamedTuple):
    """A text's tokens: `ids` (n,), and the characters [begin, end) that each stands for, `spans` (n, 2)."""

    ids: Tokens
    spans: NDArray[np.int32]


class Feature(NamedTuple):
    """One question with one window of its context."""

    question: Tokens
    context: Tokens
    first: int
    """The window's first token in the context."""
    before: int
    """Tokens of the input before the window: [CLS], the question, [SEP]."""
    answer: tuple[int, int]
    """The answer's first and last token in the input, both 0 ([CLS]) if the window does not have all of it."""
    eligible: NDArray[np.bool_]
    """Which of the window's tokens can be answers here."""


def collate(features: Sequence[Feature], length: int, cls: int, sep: int) -> Batch:
    """Make [CLS] question [SEP] window [SEP] and padding: ids, types and mask (n, length); starts and ends (n,)."""
    ids, types, mask = (np.zeros((len(features), length), dtype=np.int64) for _ in range(3))
    for row, feature in enumerate(features):
        before, end = feature.before, feature.before + len(feature.context)
        ids[row, : end + 1] = np.concatenate([[cls], feature.question, [sep], feature.context, [sep]])
        types[row, before : end + 1] = 1
        mask[row, : end + 1] = 1
    starts, ends = torch.tensor([feature.answer for feature in features]).unbind(1)
    named: dict[str, Tensor] = {"input_ids": torch.from_numpy(ids), "token_type_ids": torch.from_numpy(types)}
    return named | {"attention_mask": torch.from_numpy(mask), "starts": starts, "ends": ends}


class SpanAnswering(Task):
    """Which words of the text answer the question?"""

    metric = "f1"
    higher_is_better = True
    unit = "tokens"
    summed = 3
    """F1, exact matches, questions."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of first and last token, in nats."""
        starts, ends = span_logits(model, batch)
        return (cross_entropy(starts, batch["starts"]) + cross_entropy(ends, batch["ends"])) / 2

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the mean F1 and the share of exact matches, in percent, from the sums of `scores`."""
        return {"f1": float(100 * sums[0] / sums[2]), "exact_match": float(100 * sums[1] / sums[2])}


def span_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the logits of first and last token, (batch, length) each."""
    outputs = model(**{name: batch[name] for name in INPUTS})
    return outputs.start_logits, outputs.end_logits


def scores(question: Question, answer: str) -> tuple[float, float, float]:
    """Return an answer's F1 and exact match, each the best over the right answers, and 1, for the question itself."""
    right = question.answers
    return max(f1(answer, one) for one in right), max(exact_match(answer, one) for one in right), 1.0


def answer_text(question: Question, context: Text, span: tuple[int, int] | None) -> str:
    """Return the context's characters from the first to the last token, nothing without a span."""
    if span is None:
        return ""
    return question.context[context.spans[span[0], 0] : context.spans[span[1], 1]]


SYLLABLES = {
    "lives": (("ba", "de", "fi", "go", "lu", "ma", "ne"), ("ra", "lo", "ti", "ven", "sko", "mi", "du"), ("n", "r", "")),
    "towns": (
        ("sha", "pre", "whi", "tho", "glu", "kra", "zy"),
        ("bel", "xo", "quin", "fa", "jor", "wy"),
        ("s", "m", "k"),
    ),
}
"""Beginnings, middles and ends of the names of each domain."""

FACTS = {
    "lives": """
{subject} was born in {place} in {year} .
  Where was {subject} born ? place
  When was {subject} born ? year
{subject} works as a {job} for {other} .
  What is the job of {subject} ? job
  Who employs {subject} ? other
{subject} moved to {place} with {other} .
  Where did {subject} move ? place
  With whom did {subject} move ? other
{subject} bought a {thing} for {number} coins .
  What did {subject} buy ? thing
In {year} {subject} married {other} .
  Whom did {subject} marry ? other
""",
    "towns": """
{subject} was founded by {other} in {year} .
  Who founded {subject} ? other
  When was {subject} founded ? year
{other} rules {subject} since {year} .
  Who is the mayor of {subject} ? other
  Since when has {subject} had its mayor ? year
Traders of {subject} sell {thing} every {job} .
  What do traders sell in {subject} ? thing
  On which day is trade in {subject} ? job
In {year} floods drove {number} families from {subject} .
  How many families left {subject} ? number
  When was {subject} under water ? year
Near {place} lies {subject} .
  Where does {subject} lie ? place
""",
}
"""By domain, all kinds of sentences, with slots in braces; below each its questions, and the slot that answers them."""
LISTS = {
    "lives": {
        "job": "baker sailor teacher painter doctor farmer weaver singer miller clerk",
        "thing": "horse house boat clock carpet mirror violin garden lamp table",
        "colour": "red blue green old small large",
    },
    "towns": {
        "job": "monday tuesday wednesday thursday friday saturday sunday morning evening spring",
        "thing": "cheese pottery timber honey bells wool bridges apples silver paper",
        "colour": "sweet black fine rare famous heavy",
    },
}
YEARS = {"lives": range(1800, 1880), "towns": range(1880, 1960)}
NUMBERS = {"lives": range(10, 50), "towns": range(50, 90)}


@cache
def names(domain: str) -> tuple[str, ...]:
    """Return all invented names of the domain, capitalised, in a fixed order."""
    starts, middles, ends = SYLLABLES[domain]
    return tuple((start + middle + end).capitalize() for start in starts for middle in middles for end in ends)


@cache
def _facts(domain: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each sentence with pairs of its questions and their slots."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for line in FACTS[domain].strip().splitlines():
        if line.startswith(" "):
            question, _, slot = line.strip().rpartition(" ")
            found[-1][1].append((question, slot))
        else:
            found.append((line, []))
    return found


def words() -> list[str]:
    """Return every word of both domains in lower case, sorted: the tokenizer's vocabulary."""
    found: set[str] = set()
    for domain in FACTS:
        found.update(name.lower() for name in names(domain))
        found.update(word for listed in LISTS[domain].values() for word in listed.split())
        found.update(str(number) for number in (*YEARS[domain], *NUMBERS[domain]))
        templates = [text for sentence, asked in _facts(domain) for text in (sentence, *(one for one, _ in asked))]
        found.update(word.lower() for text in templates for word in text.split() if not word.startswith("{"))
    return sorted(found)


def _slots(domain: str, subject: str, generator: random.Random) -> dict[str, str]:
    """Draw a value for every slot; names of people and things have two words, so that spans have ends to find."""
    first, last, place = generator.sample(names(domain), 3)
    lists = {kind: listed.split() for kind, listed in LISTS[domain].items()}
    return {
        "subject": subject,
        "place": place,
        "other": f"{first} {last}",
        "job": generator.choice(lists["job"]),
        "thing": f"{generator.choice(lists['colour'])} {generator.choice(lists['thing'])}",
        "year": str(generator.choice(YEARS[domain])),
        "number": str(generator.choice(NUMBERS[domain])),
    }


def _paragraph(domain: str, identity: str, sentences: int, generator: random.Random) -> dict[str, Any]:
    """Make a context on two subjects, and one question on one of its sentences."""
    subjects = generator.sample(names(domain), 2)
    # In half of the contexts two sentences say the same kind of thing of two subjects, so that the question's verb does
    # not give the answer away; otherwise no two do, so that there is one answer.
    asked_fact = generator.choice(_facts(domain))
    others = [fact for fact in _facts(domain) if fact is not asked_fact]
    second = generator.choice((asked_fact, generator.choice(others)))
    facts = [asked_fact, second, *(generator.choice(others) for _ in range(sentences - 2))]
    about = [subjects[place % 2] for place in range(sentences)]
    slots = [_slots(domain, subject, generator) for subject in about]
    template, slot = generator.choice(asked_fact[1])
    order = generator.sample(range(sentences), sentences)
    context, start = "", -1
    for place in order:
        before = facts[place][0].partition("{" + slot + "}")[0]
        if place == 0:
            start = len(context) + len(before.format(**slots[place]))
        context += facts[place][0].format(**slots[place]) + " "
    answer = {"text": slots[0][slot], "answer_start": start}
    question = template.format(**slots[0])
    return {"context": context.rstrip(), "qas": [{"id": identity, "question": question, "answers": [answer]}]}


def make_squad(domain: str, count: int, seed: int, sentences: int = 3) -> dict[str, Any]:
    """Make a SQuAD v1.1 document of `count` questions, each on a context of its own, the same on every machine."""
    generator = random.Random(f"{domain} {seed}")
    paragraphs = [_paragraph(domain, f"{domain}-{seed}-{place}", sentences, generator) for place in range(count)]
    return {"version": "1.1", "data": [{"title": domain, "paragraphs": paragraphs}]}


DOMAINS: dict[Phase, str] = {"pretrain": "lives", "train": "towns"}
TRAIN_QUESTIONS = 4000
TEST_QUESTIONS = 500
LENGTH = 40
"""Tokens of a question with its context, padding included."""
LONGEST_ANSWER = 5
"""Most tokens of a predicted answer."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TOKEN = re.compile(r"\w+|[^\w\s]")


def encode(question: Question, vocabulary: dict[str, int]) -> tuple[Feature, Text]:
    """Turn a question into a feature with the first answer's first and last token; also return its context."""

    def tokens(text: str) -> Text:
        found = [
            (vocabulary.get(match[0].lower(), vocabulary["[UNK]"]), match.span()) for match in TOKEN.finditer(text)
        ]
        ids, spans = zip(*found, strict=True)
        return Text(np.array(ids, dtype=np.int32), np.array(spans, dtype=np.int32))

    asked, context = tokens(question.question).ids, tokens(question.context)
    before, begin = len(asked) + 2, question.starts[0]
    end = begin + len(question.answers[0])
    answer = [before + edges.tolist().index(place) for edges, place in zip(context.spans.T, (begin, end), strict=True)]
    eligible = np.ones(len(context.ids), dtype=np.bool_)
    return Feature(asked, context.ids, 0, before, (answer[0], answer[1]), eligible), context


def best_spans(start_logits: Tensor, end_logits: Tensor, context_mask: Tensor, longest: int) -> Tensor:
    """Return (n, 2): first and last token of the span in the context with the greatest sum of both logits, (n, length).

    A span holds at most `longest` tokens and does not end before it starts.
    """
    starts, ends = (logits.masked_fill(~context_mask, -torch.inf) for logits in (start_logits, end_logits))
    scores = starts[:, :, None] + ends[:, None, :]
    allowed = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu().tril(longest - 1)
    best = scores.masked_fill(~allowed, -torch.inf).flatten(1).argmax(1)
    length = scores.shape[1]
    return torch.stack([best // length, best % length], dim=1)


class Documents(Source):
    """Documents that the project makes, read as any SQuAD document is read."""

    def __init__(self, phase: Phase) -> None:
        counts = (TRAIN_QUESTIONS, TEST_QUESTIONS)
        made = [json.dumps(make_squad(DOMAINS[phase], count, seed)).encode() for seed, count in enumerate(counts)]
        vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words()))}
        train, self.test_questions = map(read_squad, made)
        encoded, self.test_encoded = (
            [encode(one, vocabulary) for one in part] for part in (train, self.test_questions)
        )
        self._special = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self.train, self.test = (
            self._collated([feature for feature, _ in part]) for part in (encoded, self.test_encoded)
        )
        self.samples, self.held_out = len(train), len(self.test_questions)
        self.data_hash = sha256(["\n".join(vocabulary).encode(), *made])

    def _collated(self, features: list[Feature]) -> Batch:
        return collate(features, LENGTH, *self._special)

    def batch(self, indices: Tensor, step: int) -> Batch:
        return {name: tensor[indices] for name, tensor in self.train.items()}

    def held_out_batch(self, indices: range) -> Batch:
        rows = torch.tensor(indices)
        return {name: tensor[rows] for name, tensor in self.test.items()}


class Questions(SpanAnswering):
    """Questions of documents that the project makes."""

    units_per_sample = LENGTH
    evaluated_together = 25
    source: Documents

    def __init__(self, setting: Setting) -> None:
        super().__init__(Documents(setting.phase))

    def _scores(self, model: nn.Module, indices: range) -> Iterator[tuple[float, float, float]]:
        logits = span_logits(model, self.held_out_batch(model, indices))
        asked = [(self.source.test_questions[index], *self.source.test_encoded[index]) for index in indices]
        inside = torch.zeros(logits[0].shape, dtype=torch.bool)
        for row, (_, feature, context) in enumerate(asked):
            inside[row, feature.before : feature.before + len(context.ids)] = True
        spans = best_spans(*logits, inside.to(logits[0].device), LONGEST_ANSWER).tolist()
        for (question, feature, context), (first, last) in zip(asked, spans, strict=True):
            yield scores(question, answer_text(question, context, (first - feature.before, last - feature.before)))
