"""Answer the questions of SQuAD v1.1 (Rajpurkar et al., EMNLP 2016) by a span of the context; metric: F1, official.

A training sample is one window of one question's context. Held-out questions count once each, whatever their windows.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.tasks.base import Batch, Setting, chunks, evaluating, shard, to_device
from benchmarks.tasks.squad import Question, exact_match, f1
from benchmarks.tasks.squad_answers import answer_text, best_span
from benchmarks.tasks.squad_features import Feature, collate
from benchmarks.tasks.squad_questions import Documents, Questions, SyntheticQuestions

LENGTH = 384
EVALUATED_TOGETHER = 8
"""Held-out questions whose windows make one batch."""


class Squad:
    """Which words of the text answer the question?"""

    metric = "f1"
    higher_is_better = True
    unit = "tokens"

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

    def _logits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        names = ("input_ids", "token_type_ids", "attention_mask")
        outputs = model(**{name: batch[name] for name in names})
        return outputs.start_logits, outputs.end_logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of first and last token, in nats."""
        starts, ends = self._logits(model, batch)
        return (cross_entropy(starts, batch["starts"]) + cross_entropy(ends, batch["ends"])) / 2

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return [sum of F1, sum of exact matches, questions] over this rank's held-out questions."""
        sums = torch.zeros(3, dtype=torch.float64)
        with evaluating(model):
            for indices in chunks(shard(self.questions.held_out, rank, world_size), EVALUATED_TOGETHER):
                asked = [self.questions.question(index) for index in indices]
                batch = self._collate([feature for _, _, features in asked for feature in features])
                logits = [part.float().cpu().numpy() for part in self._logits(model, to_device(batch, model))]
                for question, context, features in asked:
                    own = [part[: len(features)] for part in logits]
                    logits = [part[len(features) :] for part in logits]
                    answer = answer_text(question, context, best_span(features, *own))
                    sums += torch.tensor(scores(question, answer), dtype=torch.float64)
        return sums

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Return the mean F1 and the share of exact matches, in percent."""
        return {"f1": float(100 * sums[0] / sums[2]), "exact_match": float(100 * sums[1] / sums[2])}


def scores(question: Question, answer: str) -> list[float]:
    """Return an answer's F1 and exact match, each the best over the right answers, and 1, for the question itself."""
    right = question.answers
    return [max(f1(answer, one) for one in right), max(exact_match(answer, one) for one in right), 1.0]
