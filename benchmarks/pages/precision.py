"""What README and the appendix say of residuals in fewer bits, from precision.json."""

from benchmarks.pages.measured import Measured, Row
from benchmarks.pages.words import of_all, span
from benchmarks.report.labels import markdown_table, metric_heading, percent, signed_with_half, with_half

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


def precision_words(measured: Measured) -> str:
    """Whether fewer bits save more than sharing, and what both together save."""
    models = _models(measured)
    saves = sum(model[BITS]["normalised"] < model[SHARED]["normalised"] for model in models.values())
    both = span([100 * (one[BITS]["normalised"] - one[BOTH]["normalised"]) for one in models.values()], 1)
    return (
        f"All residuals in 4 bits take less memory than shared ones in float32 on {of_all(saves, len(models))} models. "
        f"Doing both saves another {both} points of memory."
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
