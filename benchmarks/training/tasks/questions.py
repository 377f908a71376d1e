"""Answer questions by a span of the context: documents in SQuAD v1.1 format that the project makes; metric: F1.

Two domains share the kind of problem (find the sentence about the right subject, copy the right span) but no name, and
few words of their templates: "lives" for pretraining, "towns" for training.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.data.squad import Question, exact_match, f1, read_squad
from benchmarks.training.tasks.task import Batch, Phase, Setting, Task, sha256, to_device

INPUTS = ("input_ids", "token_type_ids", "attention_mask")


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


SYLLABLES = {
    "lives": (("ba", "de", "fi", "go", "lu", "ma", "ne"), ("ra", "lo", "ti", "ven", "sko", "mi", "du"), ("n", "r", "")),
    "towns": (
        ("sha", "pre", "whi", "tho", "glu", "kra", "zy"),
        ("bel", "xo", "quin", "fa", "jor", "wy"),
        ("s", "m", "k"),
    ),
}
"""Beginnings, middles and ends of the names of each domain."""


@dataclass(frozen=True)
class Fact:
    """A sentence with slots in braces, and the questions on it: (question template, slot that answers it)."""

    sentence: str
    questions: tuple[tuple[str, str], ...]


FACTS = {
    "lives": (
        Fact(
            "{subject} was born in {place} in {year} .",
            (("Where was {subject} born ?", "place"), ("When was {subject} born ?", "year")),
        ),
        Fact(
            "{subject} works as a {job} for {other} .",
            (("What is the job of {subject} ?", "job"), ("Who employs {subject} ?", "other")),
        ),
        Fact(
            "{subject} moved to {place} with {other} .",
            (("Where did {subject} move ?", "place"), ("With whom did {subject} move ?", "other")),
        ),
        Fact("{subject} bought a {thing} for {number} coins .", (("What did {subject} buy ?", "thing"),)),
        Fact("In {year} {subject} married {other} .", (("Whom did {subject} marry ?", "other"),)),
    ),
    "towns": (
        Fact(
            "{subject} was founded by {other} in {year} .",
            (("Who founded {subject} ?", "other"), ("When was {subject} founded ?", "year")),
        ),
        Fact(
            "{other} rules {subject} since {year} .",
            (("Who is the mayor of {subject} ?", "other"), ("Since when has {subject} had its mayor ?", "year")),
        ),
        Fact(
            "Traders of {subject} sell {thing} every {job} .",
            (("What do traders sell in {subject} ?", "thing"), ("On which day is trade in {subject} ?", "job")),
        ),
        Fact(
            "In {year} floods drove {number} families from {subject} .",
            (("How many families left {subject} ?", "number"), ("When was {subject} under water ?", "year")),
        ),
        Fact("Near {place} lies {subject} .", (("Where does {subject} lie ?", "place"),)),
    ),
}

LISTS = {
    "lives": {
        "job": ["baker", "sailor", "teacher", "painter", "doctor", "farmer", "weaver", "singer", "miller", "clerk"],
        "thing": ["horse", "house", "boat", "clock", "carpet", "mirror", "violin", "garden", "lamp", "table"],
        "colour": ["red", "blue", "green", "old", "small", "large"],
    },
    "towns": {
        "job": [
            "monday",
            "tuesday",
            "wednesday",
            "thursday",
            "friday",
            "saturday",
            "sunday",
            "morning",
            "evening",
            "spring",
        ],
        "thing": ["cheese", "pottery", "timber", "honey", "bells", "wool", "bridges", "apples", "silver", "paper"],
        "colour": ["sweet", "black", "fine", "rare", "famous", "heavy"],
    },
}
YEARS = {"lives": range(1800, 1880), "towns": range(1880, 1960)}
NUMBERS = {"lives": range(10, 50), "towns": range(50, 90)}


@cache
def names(domain: str) -> tuple[str, ...]:
    """Return all invented names of the domain, capitalised, in a fixed order."""
    starts, middles, ends = SYLLABLES[domain]
    return tuple((start + middle + end).capitalize() for start in starts for middle in middles for end in ends)


def words() -> list[str]:
    """Return every word of both domains in lower case, sorted: the tokenizer's vocabulary."""
    found: set[str] = set()
    for domain, facts in FACTS.items():
        found.update(name.lower() for name in names(domain))
        for entries in LISTS[domain].values():
            found.update(entries)
        found.update(str(number) for number in (*YEARS[domain], *NUMBERS[domain]))
        templates = [text for fact in facts for text in (fact.sentence, *(question for question, _ in fact.questions))]
        found.update(word.lower() for text in templates for word in text.split() if not word.startswith("{"))
    return sorted(found)


def _slots(domain: str, subject: str, generator: random.Random) -> dict[str, str]:
    """Draw a value for every slot; names of people and things have two words, so that spans have ends to find."""
    first, last, place = generator.sample(names(domain), 3)
    lists = LISTS[domain]
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
    asked_fact = generator.choice(FACTS[domain])
    others = [fact for fact in FACTS[domain] if fact is not asked_fact]
    second = generator.choice((asked_fact, generator.choice(others)))
    facts = [asked_fact, second, *(generator.choice(others) for _ in range(sentences - 2))]
    about = [subjects[place % 2] for place in range(sentences)]
    slots = [_slots(domain, subject, generator) for subject in about]
    template, slot = generator.choice(asked_fact.questions)
    order = generator.sample(range(sentences), sentences)
    context, start = "", -1
    for place in order:
        before = facts[place].sentence.partition("{" + slot + "}")[0]
        if place == 0:
            start = len(context) + len(before.format(**slots[place]))
        context += facts[place].sentence.format(**slots[place]) + " "
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

Spans = list[tuple[int, int] | None]


def build_vocabulary() -> dict[str, int]:
    """Return the number of every token: the special ones first, then the words of the questions' maker."""
    return {word: number for number, word in enumerate((*SPECIAL, *words()))}


@dataclass(frozen=True)
class Encoded:
    """One question as the model sees it, and where each token stands in the context (None outside the context)."""

    input_ids: list[int]
    token_type_ids: list[int]
    spans: Spans
    start: int
    end: int


def encode(question: Question, vocabulary: dict[str, int]) -> Encoded:
    """Turn a question into [CLS] question [SEP] context [SEP], with the first answer's first and last token."""

    def number(word: str) -> int:
        return vocabulary.get(word.lower(), vocabulary["[UNK]"])

    asked = [number(word) for word in TOKEN.findall(question.question)]
    matches = list(TOKEN.finditer(question.context))
    input_ids = [vocabulary["[CLS]"], *asked, vocabulary["[SEP]"], *(number(match.group()) for match in matches)]
    input_ids.append(vocabulary["[SEP]"])
    before = len(asked) + 2
    first, last = question.starts[0], question.starts[0] + len(question.answers[0])
    start = next(place for place, match in enumerate(matches) if match.start() == first)
    end = next(place for place, match in enumerate(matches) if match.end() == last)
    spans: Spans = [None] * before + [match.span() for match in matches] + [None]
    types = [0] * before + [1] * (len(matches) + 1)
    return Encoded(input_ids, types, spans, before + start, before + end)


def collate(encoded: Sequence[Encoded]) -> Batch:
    """Pad to LENGTH: ids, types, masks (n, LENGTH); first and last token of the answers (n,)."""

    def padded(rows: list[list[int]]) -> Tensor:
        return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])

    return {
        "input_ids": padded([entry.input_ids for entry in encoded]),
        "token_type_ids": padded([entry.token_type_ids for entry in encoded]),
        "attention_mask": padded([[1] * len(entry.input_ids) for entry in encoded]),
        "context_mask": padded([[int(span is not None) for span in entry.spans] for entry in encoded]),
        "starts": torch.tensor([entry.start for entry in encoded]),
        "ends": torch.tensor([entry.end for entry in encoded]),
    }


def best_spans(start_logits: Tensor, end_logits: Tensor, context_mask: Tensor, longest: int) -> Tensor:
    """Return (n, 2): first and last token of the span in the context with the greatest sum of both logits, (n, length).

    A span holds at most `longest` tokens and does not end before it starts.
    """
    outside = context_mask == 0
    starts, ends = (logits.masked_fill(outside, -torch.inf) for logits in (start_logits, end_logits))
    scores = starts[:, :, None] + ends[:, None, :]
    allowed = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu().tril(longest - 1)
    best = scores.masked_fill(~allowed, -torch.inf).flatten(1).argmax(1)
    length = scores.shape[1]
    return torch.stack([best // length, best % length], dim=1)


class Questions(SpanAnswering):
    """Questions of documents that the project makes."""

    units_per_sample = LENGTH
    evaluated_together = 25

    def __init__(self, setting: Setting) -> None:
        """Make the documents of this phase and read them as any SQuAD document is read."""
        counts = (TRAIN_QUESTIONS, TEST_QUESTIONS)
        documents = [
            json.dumps(make_squad(DOMAINS[setting.phase], count, seed)).encode() for seed, count in enumerate(counts)
        ]
        vocabulary = build_vocabulary()
        self.train = collate([encode(question, vocabulary) for question in read_squad(documents[0])])
        self.test_questions = read_squad(documents[1])
        self.test_encoded = [encode(question, vocabulary) for question in self.test_questions]
        self.test = collate(self.test_encoded)
        self.samples, self.held_out = len(self.train["starts"]), len(self.test_questions)
        self.data_hash = sha256(["\n".join(vocabulary).encode(), *documents])

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Return the tensors of `collate` for these questions."""
        return {name: tensor[indices] for name, tensor in self.train.items()}

    def answer(self, index: int, first: int, last: int) -> str:
        """Return the text of a held-out question's context from the first to the last token, which lie in it."""
        question, spans = self.test_questions[index], self.test_encoded[index].spans
        begin, end = spans[first], spans[last]
        assert begin is not None and end is not None, question.id
        return question.context[begin[0] : end[1]]

    def _scores(self, model: nn.Module, indices: range) -> Iterator[tuple[float, float, float]]:
        rows = torch.tensor(indices)
        batch = to_device({name: tensor[rows] for name, tensor in self.test.items()}, model)
        spans = best_spans(*span_logits(model, batch), batch["context_mask"], LONGEST_ANSWER)
        for index, (first, last) in zip(indices, spans.tolist(), strict=True):
            yield scores(self.test_questions[index], self.answer(index, first, last))
