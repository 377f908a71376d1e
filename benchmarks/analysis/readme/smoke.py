"""README's text on one run of the smoke matrix, and on the same run on a second machine."""

from benchmarks.analysis.labels import SCHEME_WORDS, markdown_table, metric_heading, percent
from benchmarks.analysis.readme.measured import Measured, Row, Settings, compared, listed, on_models, percents, span
from benchmarks.analysis.tables.intervals import row_labels

FIRST, SECOND = "smoke", "smoke-second"
"""Names of the files in results/reference: of one machine, and of another."""
KEPT, STREAMED = ("topk", "baseline", "kept"), ("topk", "baseline", "streamed")
SHARED, BOTH = ("topk", "w+2d", "kept"), ("topk", "w+2d", "streamed")
CONTROL, FLOOR = ("topk", "none", "kept"), ("none", "none", "streamed")
SHOWN = (KEPT, STREAMED, SHARED, BOTH, CONTROL, FLOOR)
PAIRS = (("topk", "baseline"), ("topk", "w+2d"), ("topk", "none"), ("none", "none"))
"""Compressor and scheme of the rows of the second machine."""


def first_table(measured: Measured) -> str:
    """Memory, the fullest moment and the metric of the main settings."""
    models = list(measured.settings(FIRST).values())
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
    shares = [100 * (1 - model[CONTROL]["normalised"]) for model in measured.settings(FIRST).values()]
    return f"{span(shares, 0)} % of the model states"


def streamed(measured: Measured) -> str:
    """The saving by streamed gradients, and whether they change a metric."""
    models = measured.settings(FIRST)
    short = " / ".join(model.partition("-")[0] for model in models)
    peaks = percents(model[STREAMED]["peak_normalised"] for model in models.values())
    changed = [name for name, model in models.items() if _differ(model)]
    equal = (
        f"not equal to *baseline, kept* on {listed(changed)}" if changed else "equal to *baseline, kept* in every digit"
    )
    return f"{_normalised(models, STREAMED)} ({short}), at the fullest moment {peaks}; metric {equal}"


def held(measured: Measured, setting: tuple[str, str, str]) -> str:
    """The share that a setting holds between steps."""
    return _normalised(measured.settings(FIRST), setting)


def both(measured: Measured) -> str:
    """The share that `w+2d` with streamed gradients holds, between steps and at the fullest moment."""
    models = measured.settings(FIRST)
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
        for name, model in measured.settings(FIRST).items()
    }
    return on_models({name: f"{verdict} than *baseline*" for name, verdict in verdicts.items()})


def second_machine(measured: Measured) -> str:
    """How the second machine compares with the first."""
    first, second = measured.settings(FIRST), measured.settings(SECOND)
    pairs = _pairs(measured)
    apart = max(abs(other["metric_mean"] - one["metric_mean"]) for one, other in pairs)
    alike = all(
        percent(one[part]) == percent(other[part]) for one, other in pairs for part in ("normalised", "peak_normalised")
    )
    changed = [name for name in first if _differ(first[name]) or _differ(second[name])]
    metrics = (
        f"up to {apart:.1f} points apart, which is why one seed proves no difference of accuracy" if apart else "equal"
    )
    kept = f"differ on {listed(changed)}" if changed else "are equal in every digit on both"
    return (
        f"The same with {measured.origin(SECOND)}: memory {'equal' if alike else 'not equal'} in every digit shown. "
        f"Metrics are {metrics}; streamed and kept {kept}."
    )


def apart(measured: Measured) -> str:
    """The largest difference of a metric on the second machine, in per cent of the first one's."""
    ratios = [abs(other["metric_mean"] / one["metric_mean"] - 1) for one, other in _pairs(measured)]
    return percent(max(ratios))


def _pairs(measured: Measured) -> list[tuple[Row, Row]]:
    """Return the rows shown of the first machine, each with that of the second."""
    first, second = measured.settings(FIRST), measured.settings(SECOND)
    return [(model[setting], second[name][setting]) for name, model in first.items() for setting in SHOWN]


def second_table(measured: Measured) -> str:
    """Metrics of the second machine; kept and streamed gradients share a row where no digit differs."""
    models = measured.settings(SECOND)
    rows = []
    for compressor, scheme in PAIRS:
        found: dict[tuple[str, ...], list[str]] = {}
        for gradients in ("kept", "streamed"):
            if all((compressor, scheme, gradients) in model for model in models.values()):
                texts = tuple(f"{model[compressor, scheme, gradients]['metric_mean']:.2f}" for model in models.values())
                found.setdefault(texts, []).append(gradients)
        label = "no compression" if compressor == "none" else SCHEME_WORDS.get(scheme, scheme)
        rows += [[f"{label}, {' and '.join(kinds)}", *texts] for texts, kinds in found.items()]
    return markdown_table(("Metric on the second machine", *models), rows, "l" + "r" * len(models))
