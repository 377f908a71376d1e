"""Answer the questions of SQuAD v1.1 (Rajpurkar et al., EMNLP 2016) by a span of the context; metric: F1, official.

A training sample is one window of one question's context. Held-out questions count once each, regardless of their
windows, whose logits are combined into one answer as in the BERT authors' script for SQuAD.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.data.squad import Question
from benchmarks.training.tasks.answers import SpanAnswering, scores, span_logits
from benchmarks.training.tasks.squad_features import Feature, Text, collate
from benchmarks.training.tasks.squad_questions import Documents, SyntheticQuestions
from benchmarks.training.tasks.task import Batch, Setting, chunks, evaluating, shard, to_device

LENGTH = 384
EVALUATED_TOGETHER = 8
"""Held-out questions whose windows make one batch."""


class Squad(SpanAnswering):
    """Questions of the published documents."""

    def __init__(self, setting: Setting) -> None:
        """Read and tokenise the prepared documents, or make random questions."""
        self.length = self.units_per_sample = setting.length or LENGTH
        self.questions = (
            SyntheticQuestions(setting, self.length) if setting.synthetic else Documents(setting, self.length)
        )

    def data_hash(self) -> str:
        """Return the questions' SHA-256."""
        return self.questions.data_hash()

    def __len__(self) -> int:
        """Return the number of training windows."""
        return len(self.questions)

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Return the tensors of `collate` for these windows."""
        return self._collate([self.questions.feature(index) for index in indices.tolist()])

    def _collate(self, features: list[Feature]) -> Batch:
        return collate(features, self.length, self.questions.cls, self.questions.sep)

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return [sum of F1, sum of exact matches, questions] over this rank's held-out questions."""
        sums = torch.zeros(3, dtype=torch.float64)
        with evaluating(model):
            for indices in chunks(shard(self.questions.held_out, rank, world_size), EVALUATED_TOGETHER):
                asked = [self.questions.question(index) for index in indices]
                batch = self._collate([feature for _, _, features in asked for feature in features])
                logits = [part.float().cpu().numpy() for part in span_logits(model, to_device(batch, model))]
                for question, context, features in asked:
                    own = [part[: len(features)] for part in logits]
                    logits = [part[len(features) :] for part in logits]
                    answer = answer_text(question, context, best_span(features, *own))
                    sums += scores(question, answer)
        return sums


BEST = 20
"""Starts and ends of each window that are looked at, those of the largest logits."""
LONGEST_ANSWER = 30
"""Tokens of an answer, at most."""

Logits = NDArray[np.float32]


def best_places(logits: Logits) -> NDArray[np.int64]:
    """Return where the largest logits are, the largest first; of equals the first."""
    return np.argsort(-logits, kind="stable")[:BEST]


def best_span(features: Sequence[Feature], starts: Logits, ends: Logits) -> tuple[int, int] | None:
    """Return the context's first and last token of the span with the largest sum of both logits, None if there is none.

    Args:
        features: all windows of one question.
        starts: logits of the first token, (windows, length).
        ends: logits of the last token, likewise.

    A span begins where its window has most context, ends in the window and not before it begins, and has 30 tokens at
    most.
    """
    found, highest = None, -np.inf
    for feature, start_logits, end_logits in zip(features, starts, ends, strict=True):
        first, last = best_places(start_logits)[:, None], best_places(end_logits)[None, :]
        begin, tokens = first - feature.before, len(feature.context)
        eligible = np.append(feature.eligible, False)[np.where((begin >= 0) & (begin < tokens), begin, tokens)]
        inside = (last >= feature.before) & (last < feature.before + tokens)
        allowed = eligible & inside & (last >= first) & (last - first < LONGEST_ANSWER)
        sums = start_logits[first].astype(np.float64) + end_logits[last]
        scores = np.where(allowed, sums, -np.inf)
        row, column = np.unravel_index(np.argmax(scores), scores.shape)
        if scores[row, column] > highest:
            highest, shift = scores[row, column], feature.first - feature.before
            found = int(first[row, 0]) + shift, int(last[0, column]) + shift
    return found


def answer_text(question: Question, context: Text, span: tuple[int, int] | None) -> str:
    """Return the context's characters from the first to the last token, nothing without a span."""
    if span is None:
        return ""
    return question.context[context.spans[span[0], 0] : context.spans[span[1], 1]]
