"""Answer questions by a span of the context: documents in SQuAD v1.1 format that the project makes; metric: F1."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.data.squad import Question, read_squad
from benchmarks.training.tasks.answers import SpanAnswering, scores, span_logits
from benchmarks.training.tasks.question_maker import make_squad, words
from benchmarks.training.tasks.task import Batch, Phase, Setting, chunks, evaluating, sha256, shard, to_device

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
    """Turn a question into [CLS] question [SEP] context [SEP], with the first answer's first and last token.

    Raises:
        ValueError: if the tokens are more than LENGTH, or the answer does not begin and end with a token.
    """

    def number(word: str) -> int:
        return vocabulary.get(word.lower(), vocabulary["[UNK]"])

    asked = [number(word) for word in TOKEN.findall(question.question)]
    matches = list(TOKEN.finditer(question.context))
    input_ids = [vocabulary["[CLS]"], *asked, vocabulary["[SEP]"], *(number(match.group()) for match in matches)]
    input_ids.append(vocabulary["[SEP]"])
    if len(input_ids) > LENGTH:
        raise ValueError(
            f"question {question.id!r} has {len(input_ids)} tokens, allowed are {LENGTH}: shorten its context"
        )
    before = len(asked) + 2
    first, last = question.starts[0], question.starts[0] + len(question.answers[0])
    start = [place for place, match in enumerate(matches) if match.start() == first]
    end = [place for place, match in enumerate(matches) if match.end() == last]
    if not start or not end:
        raise ValueError(f"question {question.id!r}: the answer {question.answers[0]!r} begins or ends inside a word")
    spans: Spans = [None] * before + [match.span() for match in matches] + [None]
    types = [0] * before + [1] * (len(matches) + 1)
    return Encoded(input_ids, types, spans, before + start[0], before + end[0])


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

    def __init__(self, setting: Setting) -> None:
        """Make the documents of this phase and read them as any SQuAD document is read."""
        counts = (TRAIN_QUESTIONS, TEST_QUESTIONS)
        self._documents = [
            json.dumps(make_squad(DOMAINS[setting.phase], count, seed)).encode() for seed, count in enumerate(counts)
        ]
        vocabulary = build_vocabulary()
        train = [encode(question, vocabulary) for question in read_squad(self._documents[0])]
        self.train = collate(train)
        self.test_questions = read_squad(self._documents[1])
        self.test_encoded = [encode(question, vocabulary) for question in self.test_questions]
        self.test = collate(self.test_encoded)

    def data_hash(self) -> str:
        """Return the SHA-256 of the vocabulary and both documents."""
        return sha256(["\n".join(build_vocabulary()).encode(), *self._documents])

    def __len__(self) -> int:
        """Return the number of training questions."""
        return len(self.train["starts"])

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Return the tensors of `collate` for these questions."""
        return {name: tensor[indices] for name, tensor in self.train.items()}

    def answer(self, question: Question, encoded: Encoded, first: int, last: int) -> str:
        """Return the text of the context from the first to the last token."""
        begin, end = encoded.spans[first], encoded.spans[last]
        if begin is None or end is None:
            raise ValueError(f"question {question.id!r}: tokens {first} to {last} are not in the context")
        return question.context[begin[0] : end[1]]

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return [sum of F1, sum of exact matches, questions] over this rank's held-out questions."""
        sums = torch.zeros(3, dtype=torch.float64)
        with evaluating(model):
            for indices in chunks(shard(len(self.test_questions), rank, world_size), 25):
                rows = torch.tensor(indices)
                batch = to_device({name: tensor[rows] for name, tensor in self.test.items()}, model)
                spans = best_spans(*span_logits(model, batch), batch["context_mask"], LONGEST_ANSWER)
                for index, (first, last) in zip(indices, spans.tolist(), strict=True):
                    question = self.test_questions[index]
                    answer = self.answer(question, self.test_encoded[index], first, last)
                    sums += scores(question, answer)
        return sums
