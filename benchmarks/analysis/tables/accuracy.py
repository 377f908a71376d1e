"""The accuracy and the throughput table: metric and speed, and how both differ from the baseline's."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis.labels import TIMES, metric_value, short_labels, signed
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.statistics import CONFIDENCE, columns, interval, paired
from benchmarks.analysis.table import (
    SAME_WORK,
    Record,
    Table,
    baseline_results,
    by_model,
    by_seed,
    finished_like,
    setting_record,
)
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult

# --- The accuracy table ---


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
TELL_FILE = ROOT / "results/reference/tell.json"
"""The committed verdicts on which models can tell schemes apart; `python -m benchmarks summary tell` writes them."""


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
        **columns("metric", interval(list(values.values()))),
        "baseline": None if other is None else short_labels([other, setting])[0],
        **columns("difference", difference),
        "pairs": difference.n if difference else 0,
        "verdict": difference.verdict if difference else None,
    }


def paired_baseline(run: Run, setting: Cell) -> Cell | None:
    """Return the setting to compare `setting` with; None if that is `setting` itself or there is none.

    It has full residuals in the gradient's own precision and all else alike, with kept gradients if there is a choice.
    """
    plain = setting.compressor == "none"
    wanted = {"scheme": "baseline", "residual_dtype": None, "options": (), "hierarchy": "flat", "merge": "none"}
    wanted |= {"compressor": "topk"} if plain else {}
    found = finished_like(run, setting, (*SAME_WORK, "steps", *(() if plain else ("compressor", "density"))), wanted)
    nearest = min(found, key=lambda one: (one.gradients != "kept", abs(one.density - USUAL_DENSITY)), default=None)
    return None if nearest == setting else nearest


def metric_of_model(run: Run, model: str) -> dict[str, Any]:
    """Return name and direction of a model's metric, even for a setting of which no seed finished."""
    first = next((one for cell, one in run.results.items() if cell.model == model), None)
    return {name: getattr(first, name, None) for name in ("metric_name", "higher_is_better")}


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


def load_tells(path: Path = TELL_FILE) -> dict[str, bool]:
    """Return, by model, whether training without residuals ends measurably worse."""
    return {model: bool(entry["tells"]) for model, entry in load_json(path)["models"].items()}


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


# --- The throughput table: optimizer steps per second, and images or tokens ---


THROUGHPUT_READING = (
    "Optimizer steps per second after warm-up, in brackets the ratio to baseline, kept, then the images or tokens of "
    "all ranks per second; higher is better. "
    "On processors shared with other work these vary from run to run."
)


def throughput(run: Run) -> Table:
    """Return the throughput table of a run."""
    records = [throughput_record(run, setting, results) for setting, results in run.settings().items()]

    def text(record: Record) -> str:
        ratio, units = record["ratio_to_baseline"], record["units_per_second"]
        text = f"{record['steps_per_second']:.2f}" + (f" ({ratio:.2f} {TIMES})" if ratio is not None else "")
        return text + (f", {units:.0f} {record['unit']}/s" if units else "")

    head, body = by_model(run, records, text, {})
    figure = "benchmarks.analysis.charts.rows_chart:throughput_chart"
    return Table("throughput", "Throughput", THROUGHPUT_READING, records, head, body, figure)


def throughput_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's steps per second, mean over its seeds, and their ratio to the baseline's."""
    speed, units = (mean_of(results, name) for name in ("steps_per_second", "units_per_second"))
    base = mean_of(baseline_results(run, setting), "steps_per_second")
    ratio = speed / base if speed is not None and base else None
    found = {"steps_per_second": speed, "ratio_to_baseline": ratio}
    named = {"units_per_second": units, "unit": results[0].unit if results else None}
    return setting_record(setting, results) | found | named


def mean_of(results: Sequence[CellResult], name: str) -> float | None:
    """Return the mean of a number over the records that have it; None if none has."""
    found = [float(value) for result in results if (value := getattr(result, name)) is not None]
    return mean(found) if found else None
