"""Answer questions by a span of the context: documents in SQuAD v1.1 format that the project makes; metric: F1.

Two domains share the kind of problem (find the sentence about the right subject, copy the right span) but no name, and
few words of their templates: "lives" for pretraining, "towns" for training.
"""

import json
import random
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.data.squad import Question, exact_match, f1, read_squad
from benchmarks.training.tasks.task import Batch, Phase, Setting, Source, Task, sha256, to_device

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]


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


class Asked(Source):
    """Questions by window, and held-out ones with all their windows, of inputs of `length` tokens."""

    cls: int
    sep: int
    length: int

    @abstractmethod
    def feature(self, index: int) -> Feature:
        """Return a training window."""

    @abstractmethod
    def question(self, index: int) -> tuple[Question, Text, list[Feature]]:
        """Return a held-out question, its context and all its windows."""

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Make [CLS] question [SEP] window [SEP] and padding: ids, types and mask (n, length); starts and ends (n,)."""
        ids, types, mask = (np.zeros((len(features), self.length), dtype=np.int64) for _ in range(3))
        for row, feature in enumerate(features):
            before, end = feature.before, feature.before + len(feature.context)
            ids[row, : end + 1] = np.concatenate(
                [[self.cls], feature.question, [self.sep], feature.context, [self.sep]]
            )
            types[row, before : end + 1] = 1
            mask[row, : end + 1] = 1
        starts, ends = torch.tensor([feature.answer for feature in features]).unbind(1)
        named: dict[str, Tensor] = {"input_ids": torch.from_numpy(ids), "token_type_ids": torch.from_numpy(types)}
        return named | {"attention_mask": torch.from_numpy(mask), "starts": starts, "ends": ends}

    def batch(self, indices: Tensor, step: int) -> Batch:
        return self.collate([self.feature(index) for index in indices.tolist()])

    def held_out_batch(self, indices: range) -> Batch:
        return self.collate([feature for index in indices for feature in self.question(index)[2]])


class SpanAnswering(Task):
    """Which words of the text answer the question?"""

    metric = "f1"
    higher_is_better = True
    unit = "tokens"
    summed = 3
    """F1, exact matches, questions."""
    source: Asked

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of first and last token, in nats."""
        starts, ends = span_logits(model, batch)
        return (cross_entropy(starts, batch["starts"]) + cross_entropy(ends, batch["ends"])) / 2

    @abstractmethod
    def best_span(self, features: list[Feature], starts: Logits, ends: Logits) -> tuple[int, int] | None:
        """Return the context's first and last token of the answer, from logits (windows, length); None without one."""

    def _scores(self, model: nn.Module, indices: range) -> Iterator[tuple[float, float, float]]:
        asked = [self.source.question(index) for index in indices]
        batch = self.source.collate([feature for _, _, features in asked for feature in features])
        logits = [part.float().cpu().numpy() for part in span_logits(model, to_device(batch, model))]
        for question, context, features in asked:
            own = [part[: len(features)] for part in logits]
            logits = [part[len(features) :] for part in logits]
            span = self.best_span(features, *own)
            place = slice(0) if span is None else slice(context.spans[span[0], 0], context.spans[span[1], 1])
            yield scores(question, question.context[place])

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


class Documents(Asked):
    """Documents that the project makes, read as any SQuAD document is read."""

    length = LENGTH

    def __init__(self, phase: Phase) -> None:
        counts = (TRAIN_QUESTIONS, TEST_QUESTIONS)
        made = [json.dumps(make_squad(DOMAINS[phase], count, seed)).encode() for seed, count in enumerate(counts)]
        vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words()))}
        self.cls, self.sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
        train, self._test = ([(one, *encode(one, vocabulary)) for one in read_squad(document)] for document in made)
        self._train = [feature for _, feature, _ in train]
        self.samples, self.held_out = counts
        self.data_hash = sha256(["\n".join(vocabulary).encode(), *made])

    def feature(self, index: int) -> Feature:
        return self._train[index]

    def question(self, index: int) -> tuple[Question, Text, list[Feature]]:
        question, feature, context = self._test[index]
        return question, context, [feature]


class Questions(SpanAnswering):
    """Questions of documents that the project makes."""

    units_per_sample = LENGTH
    evaluated_together = 25

    def __init__(self, setting: Setting) -> None:
        super().__init__(Documents(setting.phase))

    def best_span(self, features: list[Feature], starts: Logits, ends: Logits) -> tuple[int, int] | None:
        """Return the span of at most LONGEST_ANSWER tokens with the greatest sum of both logits."""
        inside = slice(features[0].before, features[0].before + len(features[0].context))
        sums = starts[0, inside, None] + ends[0, None, inside]
        allowed = np.tril(np.triu(np.ones(sums.shape, dtype=np.bool_)), LONGEST_ANSWER - 1)
        first, last = np.unravel_index(np.where(allowed, sums, -np.inf).argmax(), sums.shape)
        return int(first), int(last)
