"""The accuracy table: the metric after training, beside that of the baseline scheme."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks.cell import Cell
from benchmarks.record import CellResult
from benchmarks.report.labels import metric_value, signed
from benchmarks.report.load import Run
from benchmarks.report.student import half_width
from benchmarks.report.table import (
    Record,
    Table,
    baseline_results,
    by_model,
    cell_texts,
    setting_record,
)
from benchmarks.report.tell import load_tells

READING = (
    "Metric on held-out data after training (↑ higher is better, ↓ lower is better), mean over n seeds ± half of its "
    "95 % interval (Student's t); in brackets the difference to baseline, kept."
)


def accuracy(run: Run) -> Table:
    """Return the accuracy table of a run."""
    tells = load_tells()
    records = [accuracy_record(run, setting, results, tells) for setting, results in run.settings().items()]
    head, body = by_model(run, cell_texts(run, records, _text), headings(records))
    panel = "benchmarks.report.panels:accuracy_panel"
    return Table("accuracy", "Accuracy", READING, records, head, body, panel, notes=_notes(records))


def accuracy_record(run: Run, setting: Cell, results: Sequence[CellResult], tells: dict[str, bool]) -> Record:
    """Return mean and interval of a setting's metric, and its difference to the baseline."""
    record = setting_record(setting, results) | metric_of_model(run, setting.model)
    values = [float(result.metric) for result in results if result.metric is not None]
    record["metric_mean"] = mean(values) if values else None
    record["metric_half_width"] = half_width(values)
    baseline = baseline_results(run, setting, same=("model", "world_size", "backend", "steps"))
    base = [float(result.metric) for result in baseline if result.metric is not None]
    record["difference_to_baseline"] = mean(values) - mean(base) if values and base else None
    record["model_tells"] = tells.get(setting.model)
    return record


def metric_of_model(run: Run, model: str) -> dict[str, Any]:
    """Return name and direction of a model's metric, also for a setting of which no seed finished."""
    known = run.once("first result of each model", lambda: _first_results(run)).get(model)
    return {
        "metric_name": known.metric_name if known else None,
        "higher_is_better": known.higher_is_better if known else None,
    }


def _first_results(run: Run) -> dict[str, CellResult]:
    found: dict[str, CellResult] = {}
    for cell, result in run.results.items():
        found.setdefault(cell.model, result)
    return found


def _text(record: Record) -> str:
    text = metric_value(record["metric_mean"])
    if record["metric_half_width"] is not None:
        text += f" ± {metric_value(record['metric_half_width'])}, n = {record['seeds']}"
    difference = record["difference_to_baseline"]
    is_baseline = (record["compressor"], record["scheme"], record["gradients"]) == ("topk", "baseline", "kept")
    return text if difference is None or is_baseline else f"{text} ({signed(difference, record['metric_mean'])})"


def headings(records: Sequence[Record]) -> dict[str, str]:
    """Return the heading of each model's column: its metric, which way is better, and a star if it cannot tell."""
    headings = {}
    for record in records:
        arrow = {True: " ↑", False: " ↓"}.get(record["higher_is_better"], "")
        mark = " *" if record.get("model_tells") is False else ""
        headings[record["model"]] = f"{record['model']}{mark}, {record['metric_name'] or 'metric'}{arrow}"
    return headings


def _notes(records: Sequence[Record]) -> list[str]:
    cannot = sorted({record["model"] for record in records if record["model_tells"] is False})
    unknown = sorted({record["model"] for record in records if record["model_tells"] is None})
    notes = []
    if cannot:
        notes.append(
            f"* {', '.join(cannot)} cannot tell residual schemes apart: training without residuals does as well there "
            "(results/reference/tell.json). Its column shows that nothing breaks, not that a scheme is good."
        )
    if unknown:
        notes.append(f"Whether {', '.join(unknown)} can tell residual schemes apart has not been measured.")
    if all(record["seeds"] <= 1 for record in records):
        notes.append("One seed each (n = 1): differences of the size that another seed makes mean nothing.")
    return notes
