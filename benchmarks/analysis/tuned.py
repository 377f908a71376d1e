"""What holds when each setting trains at its best learning rate: `python -m benchmarks summary tuned`.

The comparisons and their limits were written down before the first of the measured cells was run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.analysis import labels
from benchmarks.analysis.claims.claim import INCONCLUSIVE, NOT_REPRODUCED, NOT_RUN, REPRODUCED, below, bounds
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.metric_claims import margin_of
from benchmarks.analysis.statistics import interval, paired

Row = dict[str, Any]
NOT_WORSE: tuple[tuple[str, str, str], ...] = (
    ("a", "int4-plain", "baseline"),
    ("a", "int4-adafactor", "baseline"),
    ("b", "int4-plain", "dense"),
    ("b", "int4-adafactor", "dense"),
    ("c", "int4-plain", "dense-plain"),
    ("c", "int4-adafactor", "dense-adafactor"),
    ("the paper's", "resireduce", "baseline"),
    ("the paper's", "baseline", "dense"),
    ("the paper's", "resireduce", "dense"),
    ("int4's", "int4", "baseline"),
    ("int4's", "int4", "resireduce"),
)
"""Claim, the part of benchmarks/config/tune.yaml that is judged, and the part that it must not be worse than, by more
than the margin of results/paper/claims.yaml for the metric: (a) the paper's baseline, (b) plain training, (c) the same
optimizer without compression. The others are for comparison with the tables at one rate."""
HELD: tuple[tuple[str, str, Mapping[str, float]], ...] = (
    ("d", "int4-plain", {"resnet-digits": 0.30, "vgg-digits": 0.30}),
    ("d", "int4-adafactor", {"gpt2-bytes": 0.25, "bert-questions": 0.25}),
)
"""Claim, part, and by model the most bytes that a rank may hold between two steps, as a share of the baseline's."""
WORDS = {REPRODUCED: "holds", NOT_REPRODUCED: "**does not hold**", INCONCLUSIVE: "open", NOT_RUN: "not run"}
"""What a verdict is called in the tables."""
HEAD = ("Claim", "Is", "not worse than", "by", "Margin", "Seeds", "Verdict")
HELD_HEAD = ("Claim", "Does", "hold at most", "of the baseline's", "Verdict")


def judged(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each comparison and model, from `rows` as of `benchmarks.analysis.summaries.systems_rows`.

    It has claim, model, system, title, against, against_title; loss and half_width in the metric's unit, positive for
    worse, paired by seed; margin, and what it is made of; seeds, status. Of bytes: held_share and limit. Values that
    were not measured are None, and the status is then "not run".
    """
    return [*_losses({(row["model"], row["system"]): row for row in rows}), *_shares(rows)]


def _losses(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[Row]:
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
            within = bounds(lost) if lost else None
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
                "status": below(within, margin.value) if within else INCONCLUSIVE,
            }


def titled(row: Mapping[str, Any]) -> str:
    """Return the title of a system, with its learning rate if that is its own."""
    return f"{row['title']}, rate {row['learning_rate']:g}" if row.get("learning_rate") else str(row["title"])


def _shares(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for row in rows:
        for claim, system, limits in HELD:
            if row["system"] != system or row["model"] not in limits:
                continue
            limit, share = limits[row["model"]], row["held_share"]
            status = NOT_RUN if share is None else REPRODUCED if share <= limit else NOT_REPRODUCED
            sides = {"claim": claim, "model": row["model"], "system": system, "title": row["title"]}
            yield {**sides, "held_share": share, "limit": limit, "status": status}


def judged_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows of `judged` as Markdown: for each model a table of losses, and one of bytes held."""
    rows = [*rows]
    texts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        its = [row for row in rows if row["model"] == model]
        losses = [_loss_texts(row) for row in its if "loss" in row]
        texts.append(f"{model}\n{labels.markdown_table(HEAD, losses, 'lllrrrl')}")
        if held := [_held_texts(row) for row in its if "held_share" in row]:
            texts.append(labels.markdown_table(HELD_HEAD, held, "llrrl"))
    return "\n\n".join(texts)


def _loss_texts(row: Mapping[str, Any]) -> list[str]:
    known = row["loss"] is not None
    lost = labels.signed_with_half(row["loss"], row["half_width"], 2) if known else labels.ABSENT
    margin = labels.ABSENT if row["margin"] is None else f"{row['margin']:.2f}"
    return [
        row["claim"],
        row["title"],
        row["against_title"],
        lost,
        margin,
        str(row["seeds"] or 0),
        WORDS[row["status"]],
    ]


def _held_texts(row: Mapping[str, Any]) -> list[str]:
    return [
        row["claim"],
        row["title"],
        labels.percent(row["limit"]),
        labels.percent(row["held_share"]),
        WORDS[row["status"]],
    ]
