"""Figures with a dot a setting: the metric with its interval, the throughput."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from benchmarks.report.html.chart import (
    MOST,
    Chart,
    Mark,
    Panel,
    Scale,
    by_model,
    css_name,
    labels_of,
    on_real_data,
    scheme_legend,
    series_of,
)
from benchmarks.report.labels import TIMES, metric_value, signed
from benchmarks.report.table import Record

METRIC, DIFFERENCE, STEPS, RATIO = "metric", "difference to baseline", "steps per second", "ratio to baseline"
ACCURACY_READING = (
    "Mean over the seeds with its 95 % interval (Student's t), where there are two seeds or more. Full marks: "
    "gradients kept; open marks: streamed. The dashed line is baseline, kept. A difference is that seed by seed."
)
SPEED_READING = (
    "Optimizer steps per second after warm-up; further right is better. Full marks: gradients kept; open marks: "
    "streamed. On processors shared with other work these vary from run to run."
)
USE = Markup('<use href="#shape-{}" class="s-{} {}" x="{}%" y="11"/>')
BAR = Markup('<line class="interval" x1="{}%" x2="{}%" y1="11" y2="11"/>')
LINE = Markup('<line class="reference" x1="{0}%" x2="{0}%" y2="22"/>')
Values = Callable[[Record], tuple[float | None, float | None]]
"""Value and half of its interval, None where there is none."""


def accuracy_chart(records: Sequence[Record]) -> Chart | None:
    """Return the figure of the seeds table's records; None if nothing is finished."""
    panels = []
    for model, found in by_model(on_real_data(records)).items():
        name = next((record["metric_name"] for record in found if record["metric_name"]), "metric")
        better = {True: ", higher is better", False: ", lower is better"}.get(found[0]["higher_is_better"], "")
        panels += _panel(found, model, METRIC, f"{name}{better}", _metric, _metric_text)
        panels += _panel(found, model, DIFFERENCE, f"{name}, difference to baseline", _difference, _difference_text)
    return Chart("accuracy", "Accuracy", ACCURACY_READING, panels, scheme_legend(panels)) if panels else None


def throughput_chart(records: Sequence[Record]) -> Chart | None:
    """Return the figure of the throughput table's records; None if nothing is finished."""
    panels = []
    for model, found in by_model(records).items():
        panels += _panel(found, model, STEPS, "steps per second, higher is better", _steps, _steps_text, zero=True)
        panels += _panel(found, model, RATIO, "ratio to baseline, kept", _ratio, _ratio_text, zero=True)
    return Chart("throughput", "Throughput", SPEED_READING, panels, scheme_legend(panels)) if panels else None


def _panel(
    records: list[Record],
    model: str,
    view: str,
    axis: str,
    values: Values,
    text: Callable[[Record], str],
    zero: bool = False,
) -> list[Panel]:
    """The panel of one model, if any of its records has a value."""
    known = [record for record in records if values(record)[0] is not None]
    shown = known[:MOST]
    if not shown:
        return []
    ends = [end for record in shown for end in _ends(*values(record))]
    scale = Scale(0, 1.06 * max(ends) or 1) if zero else Scale.around(ends)
    base = next((values(record)[0] for record in shown if _is_baseline(record)), None)
    base = 0.0 if view == DIFFERENCE else base
    marks = []
    for record, label in zip(shown, labels_of(shown), strict=True):
        value, half_width = values(record)
        tip = f"{model}, {label}\n{axis}: {text(record)}\nn = {record['seeds']}"
        marks.append(Mark(series_of(record), label, tip, _draw(record, value, half_width, base, scale), text(record)))
    return [Panel(model, view, marks, scale.ticks(), axis, more=len(known) - len(shown))]


def _draw(record: Record, value: float | None, half_width: float | None, base: float | None, scale: Scale) -> Markup:
    assert value is not None, "records without a value are not drawn"
    drawn = [LINE.format(scale.at(base))] if base is not None and scale.low <= base <= scale.high else []
    if half_width is not None:
        drawn.append(BAR.format(scale.at(value - half_width), scale.at(value + half_width)))
    series = css_name(series_of(record))
    drawn.append(USE.format(series, series, record["gradients"], scale.at(value)))
    return Markup().join(drawn)


def _ends(value: float | None, half_width: float | None) -> list[float]:
    assert value is not None, "records without a value are not drawn"
    return [value - (half_width or 0), value + (half_width or 0)]


def _is_baseline(record: Record) -> bool:
    return (record["compressor"], record["scheme"], record["gradients"]) == ("topk", "baseline", "kept")


def _metric(record: Record) -> tuple[float | None, float | None]:
    return record["metric_mean"], record["metric_half_width"]


def _metric_text(record: Record) -> str:
    half_width = record["metric_half_width"]
    return metric_value(record["metric_mean"]) + (f" ± {metric_value(half_width)}" if half_width is not None else "")


def _difference(record: Record) -> tuple[float | None, float | None]:
    return record["difference_mean"], record["difference_half_width"]


def _difference_text(record: Record) -> str:
    half_width = record["difference_half_width"]
    text = signed(record["difference_mean"], record["metric_mean"])
    return text + (f" ± {metric_value(half_width)}" if half_width is not None else "")


def _steps(record: Record) -> tuple[float | None, float | None]:
    return record["steps_per_second"], None


def _steps_text(record: Record) -> str:
    return f"{record['steps_per_second']:.3g}"


def _ratio(record: Record) -> tuple[float | None, float | None]:
    return record["ratio_to_baseline"], None


def _ratio_text(record: Record) -> str:
    return f"{record['ratio_to_baseline']:.2f} {TIMES}"
