"""From BERT's logits over the windows of a question to one answer, as the BERT authors' script for SQuAD does it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.tasks.squad import Question
from benchmarks.tasks.squad_features import Feature, Text

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
