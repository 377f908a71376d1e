"""The text of README and docs/results.md on one run of the smoke matrix."""

from benchmarks.analysis.labels import markdown_table, metric_heading, percent
from benchmarks.analysis.readme.measured import Measured, Row, Settings, compared, listed, on_models, percents, span
from benchmarks.analysis.tables.intervals import row_labels

FILE = "smoke"
"""Name of the file in results/reference."""
KEPT, STREAMED = ("topk", "baseline", "kept"), ("topk", "baseline", "streamed")
SHARED, BOTH = ("topk", "w+2d", "kept"), ("topk", "w+2d", "streamed")
CONTROL, FLOOR = ("topk", "none", "kept"), ("none", "none", "streamed")
SHOWN = (KEPT, STREAMED, SHARED, BOTH, CONTROL, FLOOR)


def first_table(measured: Measured) -> str:
    """Memory, the fullest moment and the metric of the main settings."""
    models = list(measured.settings(FILE).values())
    labels = row_labels([models[0][setting] for setting in SHOWN])
    head = ("Scheme, gradients", *(metric_heading(model[KEPT]) for model in models))
    rows = [
        [label, *(_entry(model[setting]) for model in models)] for label, setting in zip(labels, SHOWN, strict=True)
    ]
    return markdown_table(head, rows, "l" + "r" * len(models))


def _entry(row: Row) -> str:
    return f"{percent(row['normalised'])} ({percent(row['peak_normalised'])}), {row['metric_mean']:.2f}"


def residual_share(measured: Measured) -> str:
    """The residuals' share of all model states, which is saved without residuals."""
    shares = [100 * (1 - model[CONTROL]["normalised"]) for model in measured.settings(FILE).values()]
    return f"{span(shares, 0)} % of the model states"


def streamed(measured: Measured) -> str:
    """The saving by streamed gradients, and whether they change a metric."""
    models = measured.settings(FILE)
    short = " / ".join(model.partition("-")[0] for model in models)
    peaks = percents(model[STREAMED]["peak_normalised"] for model in models.values())
    changed = [name for name, model in models.items() if _differ(model)]
    equal = (
        f"not equal to *baseline, kept* on {listed(changed)}" if changed else "equal to *baseline, kept* in every digit"
    )
    return f"{_normalised(models, STREAMED)} ({short}), at the fullest moment {peaks}; metric {equal}"


def held(measured: Measured, setting: tuple[str, str, str]) -> str:
    """The share that a setting holds between steps."""
    return _normalised(measured.settings(FILE), setting)


def both(measured: Measured) -> str:
    """The share that `w+2d` with streamed gradients holds, between steps and at the fullest moment."""
    models = measured.settings(FILE)
    peaks = percents(model[BOTH]["peak_normalised"] for model in models.values())
    return f"{_normalised(models, BOTH)}, at the fullest moment {peaks}"


def _normalised(models: dict[str, Settings], setting: tuple[str, str, str]) -> str:
    return f"normalised {percents(model[setting]['normalised'] for model in models.values())}"


def _differ(model: Settings) -> bool:
    """Return whether metrics of kept and streamed gradients differ in any digit."""
    return any(model[one]["metrics"] != model[other]["metrics"] for one, other in ((KEPT, STREAMED), (SHARED, BOTH)))


def control(measured: Measured) -> str:
    """Whether the metric is worse without residuals, by one seed."""
    verdicts = {
        name: compared(model[CONTROL]["metric_mean"], model[KEPT]["metric_mean"], model[KEPT]["higher_is_better"])
        for name, model in measured.settings(FILE).items()
    }
    return on_models({name: f"{verdict} than *baseline*" for name, verdict in verdicts.items()})
