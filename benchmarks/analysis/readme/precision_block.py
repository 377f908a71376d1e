"""The text of README and the appendix on fewer bits, from precision.json, compared with sharing, from settle.json."""

from benchmarks.analysis.claims.ledger import adjusted
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import markdown_table, metric_heading, percent, signed_with_half, with_half
from benchmarks.analysis.readme.measured import LEVEL, Measured, Row, listed, of_all, p_text, span
from benchmarks.analysis.statistics import Interval, interval, p_beyond, paired

FULL, BITS = ("baseline", None), ("baseline", "int4")
SHARED, BOTH = ("w+2d", None), ("w+2d", "int4")
"""Scheme and precision of residuals."""
Models = dict[str, dict[tuple[str, str | None], Row]]


def _models(measured: Measured, file: str = "precision") -> Models:
    by_model = grouped((row["model"], row) for row in measured.load(file)["rows"])
    return {model: {(row["scheme"], row["residual_dtype"]): row for row in its} for model, its in by_model.items()}


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


FILE = "settle"
Gain = tuple[Interval, float, str]
"""Advantage of int4 over shared residuals, its p-value after Holm's correction, and the verdict."""


def _gains(measured: Measured) -> dict[str, Gain]:
    """Return the advantage of int4, model by model."""
    found = {}
    for model, its in _models(measured, FILE).items():
        bits, shared = its[BITS], its[SHARED]
        sign = 1 if bits["higher_is_better"] else -1
        one = interval([sign * each for each in paired(bits["metrics"], shared["metrics"])])
        assert one is not None
        found[model] = (one, 1.0 if (p := p_beyond(one, 0.0)) is None else p)
    corrected = adjusted([p for _, p in found.values()])
    return {
        model: (one, p, "not shown" if p >= LEVEL else "less" if one.mean > 0 else "more")
        for (model, (one, _)), p in zip(found.items(), corrected, strict=True)
    }


def settled_words(measured: Measured) -> str:
    """The answer to the question of config/settle.yaml."""
    gains = _gains(measured)
    texts = [
        f"{model}: {'-' if one.mean < 0 else ''}{with_half(abs(one.mean), one.half_width, 1)} "
        f"({one.n} seeds, p {p_text(p) if p < 0.001 else f'= {p_text(p)}'})"
        for model, (one, p, _) in gains.items()
    ]
    head = "int4 is better than `w+2d` in float32, ± half of the paired 95 % interval, p by Holm's correction: "
    return f"{head}{'; '.join(texts)}. {_verdict(gains)}"


def _verdict(gains: dict[str, Gain]) -> str:
    """Return the joint verdict of the four tests."""
    said = grouped((verdict, model) for model, (_, _, verdict) in gains.items())
    if len(said) == 1:
        (verdict,) = said
        texts = {"less": "Fewer bits cost less", "more": "Fewer bits cost more", "not shown": "No difference is shown"}
        return f"{texts[verdict]}, on {of_all(len(gains), len(gains))} by Holm's correction."
    words = {"less": "cost less on", "more": "cost more on", "not shown": "are not shown to differ on"}
    return (
        f"By Holm's correction fewer bits {listed([f'{words[one]} {listed(those)}' for one, those in said.items()])}."
    )


def settled_claim(measured: Measured) -> str:
    """Return the verdict on bits against sharing, without the figures it rests on."""
    return _verdict(_gains(measured))
