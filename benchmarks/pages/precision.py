"""What README and the appendix say of residuals in fewer bits, from precision.json."""

from benchmarks.claims.holm import adjusted
from benchmarks.pages.measured import Measured, Row
from benchmarks.pages.words import LEVEL, listed, number, of_all, p_text, span
from benchmarks.report.labels import markdown_table, metric_heading, percent, signed_with_half, with_half
from benchmarks.report.student import Interval, interval, p_beyond, paired

FULL, BITS = ("baseline", None), ("baseline", "int4")
SHARED, BOTH = ("w+2d", None), ("w+2d", "int4")
"""Scheme, and precision of residuals."""
Models = dict[str, dict[tuple[str, str | None], Row]]


def _models(measured: Measured) -> Models:
    found: Models = {}
    for row in measured.load("precision")["rows"]:
        found.setdefault(row["model"], {})[row["scheme"], row["residual_dtype"]] = row
    return found


def precision_table(measured: Measured) -> str:
    """Memory and the change of the metric, by scheme and precision of residuals."""
    models = list(_models(measured).values())
    rows = [
        [f"{scheme}, {dtype or 'float32'}", *(_entry(model[scheme, dtype]) for model in models)]
        for scheme, dtype in models[0]
    ]
    head = ("Scheme, residuals in", *(metric_heading(model[FULL]) for model in models))
    return markdown_table(head, rows, "l" + "r" * len(models))


def _entry(row: Row) -> str:
    if (row["scheme"], row["residual_dtype"]) == FULL:
        return percent(row["normalised"])
    return f"{percent(row['normalised'])}, {signed_with_half(row['difference_mean'], row['difference_half_width'], 1)}"


def _gains(measured: Measured) -> list[tuple[Interval, float, float]]:
    """By how much int4 is better than shared residuals: with its p-value, and that by Holm's correction over models."""
    found = []
    for model in _models(measured).values():
        better = 1 if model[FULL]["higher_is_better"] else -1
        one = interval([better * each for each in paired(model[BITS]["metrics"], model[SHARED]["metrics"])])
        assert one is not None
        found.append((one, 1.0 if (p := p_beyond(one, 0.0)) is None else p))
    corrected = adjusted([p for _, p in found])
    return [(one, p, holm) for (one, p), holm in zip(found, corrected, strict=True)]


def _shown(gains: list[tuple[Interval, float, float]]) -> tuple[int, int]:
    """How many models show that int4 is better: each by itself, and by Holm's correction."""
    above = [(p, holm) for one, p, holm in gains if one.mean > 0]
    return sum(p < LEVEL for p, _ in above), sum(holm < LEVEL for _, holm in above)


def precision_words(measured: Measured) -> str:
    """Whether fewer bits save more than sharing, whether they cost less, and what both together save."""
    models, gains = _models(measured), _gains(measured)
    saves = sum(model[BITS]["normalised"] < model[SHARED]["normalised"] for model in models.values())
    _, stand = _shown(gains)
    texts = [
        f"{signed_with_half(one.mean, one.half_width, 1).removeprefix('+')} ({'' if index else 'p = '}{p_text(p)})"
        for index, (one, p, _) in enumerate(gains)
    ]
    left = f"{'all' if stand == len(gains) else number(stand)} of these {'stands' if stand == 1 else 'stand'}"
    known = "holds" if stand == len(gains) else "is a hypothesis"
    both = span([100 * (one[BITS]["normalised"] - one[BOTH]["normalised"]) for one in models.values()], 1)
    return (
        f"All residuals in 4 bits take less memory than shared ones in float32 on {of_all(saves, len(models))} models. "
        f"That they also lose less accuracy {known}: int4 is better than `w+2d` in float32 by {listed(texts)}, seed by "
        f"seed, and by Holm's correction over the {number(len(gains))}, {left}. "
        f"Doing both saves another {both} points of memory."
    )


def precision_claim(measured: Measured) -> str:
    """Of how many models the seeds show that fewer bits cost less than sharing."""
    gains = _gains(measured)
    shown, stand = _shown(gains)
    return (
        f"{number(gains[0][0].n)} seeds show it of {number(shown)} small models, by Holm's correction over the "
        f"{number(len(gains))} of {number(stand)}"
    )


def precision_expected(measured: Measured) -> str:
    """How far int4 is from float32 at most, and whether it saves more than sharing."""
    models = _models(measured).values()
    ours = [(model[BITS]["metric_name"] == "perplexity", abs(model[BITS]["difference_mean"])) for model in models]
    points, perplexity = (max(far for other, far in ours if other == of) for of in (False, True))
    more = sum(model[BITS]["normalised"] < model[SHARED]["normalised"] for model in models)
    saves = "saves more than `w+2d`" + ("" if more == len(models) else f" on {of_all(more, len(models))}")
    return (
        f"int4 at most {with_half(points, None, 1)} points of accuracy or F1 and {with_half(perplexity, None, 1)} of "
        f"perplexity from float32, {saves}"
    )
