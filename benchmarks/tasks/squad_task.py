"""Answer the questions of SQuAD v1.1 (Rajpurkar et al., EMNLP 2016) by a span of the context; metric: F1, official.

A training sample is one window of one question's context. Held-out questions count once each, whatever their windows.
"""

import torch
from torch import Tensor, nn

from benchmarks.tasks.answers import SpanAnswering, scores, span_logits
from benchmarks.tasks.base import Batch, Setting, chunks, evaluating, shard, to_device
from benchmarks.tasks.squad_answers import answer_text, best_span
from benchmarks.tasks.squad_features import Feature, collate
from benchmarks.tasks.squad_questions import Documents, Questions, SyntheticQuestions

LENGTH = 384
EVALUATED_TOGETHER = 8
"""Held-out questions whose windows make one batch."""


class Squad(SpanAnswering):
    """Questions of the published documents."""

    def __init__(self, setting: Setting) -> None:
        """Read and tokenise the prepared documents, or make random questions."""
        self.length = self.units_per_sample = setting.length or LENGTH
        self.questions: Questions = (
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
