"""The accuracy table: the metric after training, how sure it is, and its difference to the baseline, seed by seed."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.analysis.grouping import first_of
from benchmarks.analysis.labels import metric_value, short_labels, signed
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.statistics import CONFIDENCE, Interval, interval, paired
from benchmarks.analysis.table import SAME_WORK, Record, Table, by_model, by_seed, finished_like, setting_record
from benchmarks.analysis.tables.sensitivity import load_tells
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult

READING = (
    "Metric on held-out data after training (↑ higher is better, ↓ lower is better), mean over n seeds ± half of its "
    f"{100 * CONFIDENCE:.0f} % interval (Student's t); in brackets the mean difference to baseline of the same seeds, "
    "compressor and density, kept, ± half of its interval, and what that allows to say. Without compression: to top-k "
    "at density 0.01."
)
CAVEATS = (
    "No difference seen is not no difference: one smaller than the interval may be there.",
    "An interval misses the true value once in 20 times: of many comparisons some say higher or lower by chance.",
)
ONE_SEED = "One seed each (n = 1): differences of the size that another seed makes mean nothing."
SEVERAL = ("intervals over five seeds", "make run RUN=mini PART=table")
"""What a run with one seed lacks, and the command that measures it."""
USUAL_DENSITY = 0.01


def accuracy(run: Run) -> Table:
    """Return the accuracy table of a run."""
    tells = load_tells()
    records = [
        accuracy_record(run, setting, results) | {"model_tells": tells.get(setting.model)}
        for setting, results in run.settings().items()
    ]
    single = all(record["seeds"] <= 1 for record in records)
    head, body = by_model(run, records, partial(_text, single=single), headings(records))
    figure = "benchmarks.analysis.charts.rows_chart:accuracy_chart"
    notes = [*_notes(records), *((ONE_SEED,) if single else CAVEATS)]
    lacks = (SEVERAL,) if single else ()
    return Table("accuracy", "Accuracy", READING, records, head, body, figure, notes=notes, lacks=lacks)


def accuracy_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's metric and its difference to the baseline, with intervals."""
    values = by_seed(results)
    other = paired_baseline(run, setting)
    difference = interval(paired(values, by_seed(run.settings()[other]))) if other is not None else None
    return {
        **setting_record(setting, results),
        **metric_of_model(run, setting.model),
        **_columns("metric", interval(list(values.values()))),
        "baseline": None if other is None else short_labels([other, setting])[0],
        **_columns("difference", difference),
        "pairs": difference.n if difference else 0,
        "verdict": difference.verdict if difference else None,
    }


def paired_baseline(run: Run, setting: Cell) -> Cell | None:
    """Return the setting to compare `setting` with; None if that is `setting` itself or there is none.

    It has full residuals in the gradient's own precision and all else alike, with kept gradients if there is a choice.
    """
    plain = setting.compressor == "none"
    wanted = {"scheme": "baseline", "residual_dtype": None, "options": (), "hierarchy": "flat"}
    wanted |= {"merge": "none"}
    wanted |= {"compressor": "topk"} if plain else {}
    found = finished_like(run, setting, (*SAME_WORK, "steps", *(() if plain else ("compressor", "density"))), wanted)
    nearest = min(found, key=lambda one: (one.gradients != "kept", abs(one.density - USUAL_DENSITY)), default=None)
    return None if nearest == setting else nearest


def metric_of_model(run: Run, model: str) -> dict[str, Any]:
    """Return name and direction of a model's metric, even for a setting of which no seed finished."""
    first = run.once("first result of each model", lambda: first_of((c.model, one) for c, one in run.results.items()))
    known = first.get(model)
    return {
        "metric_name": known.metric_name if known else None,
        "higher_is_better": known.higher_is_better if known else None,
    }


def _columns(name: str, found: Interval | None) -> Record:
    return {f"{name}_mean": found.mean if found else None, f"{name}_half_width": found.half_width if found else None}


def _text(record: Record, single: bool) -> str:
    """Return a setting's metric and its difference; single: no setting has two seeds, which one note says for all."""
    value, half_width = record["metric_mean"], record["metric_half_width"]
    digits = 4 if abs(value) < 1 else 3  # an interval has as many decimals as its value
    if half_width is None:
        text = metric_value(value) + ("" if single else f", n = {record['seeds']}: no interval")
    else:
        text = f"{metric_value(value)} ± {half_width:.{digits}f}, n = {record['seeds']}"
    if record["difference_mean"] is None:
        return text
    difference, width = signed(record["difference_mean"], value), record["difference_half_width"]
    difference += f" ± {width:.{digits}f}: {record['verdict']}" if width is not None else ""
    difference += f", {record['pairs']} seeds in common" if record["pairs"] != record["seeds"] else ""
    return f"{text} ({difference})"


def headings(records: Sequence[Record]) -> dict[str, str]:
    """Return the heading of each model's column: its metric, which way is better, and a star if it cannot tell."""
    headings = {}
    for record in records:
        arrow = {True: " ↑", False: " ↓"}.get(record["higher_is_better"], "")
        mark = " *" if record.get("model_tells") is False else ""
        headings[record["model"]] = f"{record['model']}{mark}, {record['metric_name'] or 'metric'}{arrow}"
    return headings


def _notes(records: Sequence[Record]) -> list[str]:
    """Return notes on which models cannot tell residual schemes apart, and for which this is not known."""
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
    return notes
