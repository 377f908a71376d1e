"""Loss and official scores of tasks that answer questions by a span of the context; metric: F1."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.data.squad import Question, exact_match, f1
from benchmarks.training.tasks.task import Batch

INPUTS = ("input_ids", "token_type_ids", "attention_mask")


class SpanAnswering:
    """Which words of the text answer the question?"""

    metric = "f1"
    higher_is_better = True
    unit = "tokens"

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


def scores(question: Question, answer: str) -> Tensor:
    """Return an answer's F1 and exact match, each the best over the right answers, and 1, for the question itself."""
    right = question.answers
    best = [max(f1(answer, one) for one in right), max(exact_match(answer, one) for one in right), 1.0]
    return torch.tensor(best, dtype=torch.float64)
