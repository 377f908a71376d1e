"""What holds when each setting trains at its best learning rate: `python -m benchmarks summary tuned`.

The comparisons and their limits were written down before the first of the measured cells was run.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.analysis.claims.claim import INCONCLUSIVE, NOT_REPRODUCED, NOT_RUN, REPRODUCED, below, bounds, worst
from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.claims.metric_claims import margin_of
from benchmarks.analysis.statistics import interval, paired

Row = dict[str, Any]
OURS = {
    "resnet-digits": "int4-plain",
    "vgg-digits": "int4-plain",
    "gpt2-bytes": "int4-adafactor",
    "bert-questions": "int4-adafactor",
}
"""The setting without a first moment that decides the claims of a model: plain SGD, or Adafactor."""
CONTROL = {"int4-plain": "dense-plain", "int4-adafactor": "dense-adafactor"}
"""By part of config/tune.yaml: the part that trains with its optimizer and without compression."""
CLAIMS = {
    "a": "int4 without a first moment is not worse than the paper's baseline",
    "b": "nor than plain training with the recipe's optimizer",
    "c": "nor than the same optimizer without compression",
    "d": "it holds at most 30 % (SGD) and 25 % (Adafactor) of the baseline's model states",
}
"""Each holds if it holds on all four models, for the setting of OURS, so no correction for several tests is needed."""
NOT_WORSE: tuple[tuple[str, str, str], ...] = (
    *(("a", system, "baseline") for system in CONTROL),
    *(("b", system, "dense") for system in CONTROL),
    *(("c", system, control) for system, control in CONTROL.items()),
    ("the paper's", "resireduce", "baseline"),
    ("the paper's", "baseline", "dense"),
    ("the paper's", "resireduce", "dense"),
    ("int4's", "int4", "baseline"),
    ("int4's", "int4", "resireduce"),
)
"""Claim, the part of config/tune.yaml that is looked at, and the part that it must not be worse than, by more
than the margin of results/paper/claims.yaml for the metric. Rows that decide no claim are for comparison."""
LIMITS = {"int4-plain": 0.30, "int4-adafactor": 0.25}
"""The most bytes that a rank may hold between two steps, as a share of the baseline's."""
SEEDS = 5
"""With fewer nothing is decided."""
WORDS = {REPRODUCED: "holds", NOT_REPRODUCED: "**does not hold**", INCONCLUSIVE: "open", NOT_RUN: "not run"}
"""What a verdict is called in the tables."""


def judged(rows: Sequence[Mapping[str, Any]], diverged: Collection[tuple[str, str]] = ()) -> list[Row]:
    """Return a row for each comparison and model, from `rows` as of `benchmarks.analysis.summaries.systems`.

    diverged: models and systems of which a seed diverged: what is claimed of them does not hold.

    It has claim, model, system, title, against, against_title; loss and half_width in the metric's unit, positive for
    worse, paired by seed; margin, and what it is made of; seeds, status, and whether it decides the claim. Of bytes:
    held_share and limit. Values that were not measured are None, and the status is then "not run".
    """
    found = {(row["model"], row["system"]): row for row in rows}
    return [
        row | {"decides": row["claim"] in CLAIMS and OURS.get(row["model"]) == row["system"]}
        for row in (*_losses(found, diverged), *_shares(rows))
    ]


def verdicts(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the status of each of CLAIMS: the worst of the rows of `judged` that decide it."""
    found = {claim: [row["status"] for row in rows if row["decides"] and row["claim"] == claim] for claim in CLAIMS}
    return {claim: worst(its) if len(its) == len(OURS) else NOT_RUN for claim, its in found.items()}


def _losses(found: Mapping[tuple[str, str], Mapping[str, Any]], diverged: Collection[tuple[str, str]]) -> Iterator[Row]:
    book, absent = load_claims(), dict.fromkeys(("loss", "half_width", "margin", "seeds"))
    for model in dict.fromkeys(model for model, _ in found):
        for claim, tested, against in NOT_WORSE:
            one, other = found.get((model, tested)), found.get((model, against))
            sides = {"claim": claim, "model": model, "system": tested, "against": against}
            if one is None or other is None:
                yield {**sides, **absent, "title": tested, "against_title": against, "status": NOT_RUN}
                continue
            sign = 1 if one["higher_is_better"] else -1
            lost = interval([sign * difference for difference in paired(other["metrics"], one["metrics"])])
            margin = margin_of(book, {}, one["metric_name"], other["metric_mean"])
            within = bounds(lost) if lost and lost.n >= SEEDS else None
            status = below(within, margin.value) if within else INCONCLUSIVE
            yield {
                **sides,
                "title": titled(one),
                "against_title": titled(other),
                "metric_name": one["metric_name"],
                "loss": lost.mean if lost else None,
                "half_width": lost.half_width if lost else None,
                "margin": margin.value,
                "margin_is": margin.reason,
                "seeds": lost.n if lost else 0,
                "status": NOT_REPRODUCED if (model, tested) in diverged else status,
            }


def titled(row: Mapping[str, Any]) -> str:
    """Return the title of a system, with its learning rate if that is its own."""
    return f"{row['title']}, rate {row['learning_rate']:g}" if row.get("learning_rate") else str(row["title"])


def _shares(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for row in rows:
        if (limit := LIMITS.get(row["system"])) is not None:
            share = row["held_share"]
            status = NOT_RUN if share is None else REPRODUCED if share <= limit else NOT_REPRODUCED
            sides = {"claim": "d", "model": row["model"], "system": row["system"], "title": row["title"]}
            yield {**sides, "held_share": share, "limit": limit, "status": status}
