"""The seeds table: how sure a metric is, and its difference to the baseline, seed by seed."""

from collections.abc import Sequence
from typing import Any

from benchmarks.cell import Cell
from benchmarks.record import CellResult
from benchmarks.report.accuracy import headings, metric_of_model
from benchmarks.report.labels import metric_value, short_labels, signed
from benchmarks.report.load import Run
from benchmarks.report.student import CONFIDENCE, Interval, interval, paired
from benchmarks.report.table import SAME_WORK, Record, Table, by_model, cell_texts, finished_by, setting_record

READING = (
    "Metric after training (↑ higher is better, ↓ lower is better), mean over n seeds ± half of its "
    f"{100 * CONFIDENCE:.0f} % interval (Student's t); in brackets the mean difference to baseline of the same seeds, "
    "compressor and density, kept, ± half of its interval, and what that allows to say. Without compression: to top-k "
    "at density 0.01."
)
CAVEATS = (
    "No difference seen is not no difference: one smaller than the interval may be there.",
    "An interval misses the true value once in 20 times: of many comparisons some say higher or lower by chance.",
)
USUAL_DENSITY = 0.01


def seeds(run: Run) -> Table:
    """Return the seeds table of a run."""
    records = [seeds_record(run, setting, results) for setting, results in run.settings().items()]
    head, body = by_model(run, cell_texts(run, records, _text), headings(records))
    panel = "benchmarks.report.panels:differences_panel"
    return Table("seeds", "Seeds", READING, records, head, body, panel, notes=list(CAVEATS))


def seeds_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's metric and its difference to the baseline, with intervals."""
    values = by_seed(results)
    other = paired_baseline(run, setting)
    differences = paired(values, by_seed(run.settings()[other])) if other is not None else []
    record = setting_record(setting, results) | metric_of_model(run, setting.model)
    return record | {
        **_columns("metric", interval(list(values.values()))),
        "baseline": None if other is None else short_labels([other, setting])[0],
        **_columns("difference", difference := interval(differences)),
        "pairs": len(differences),
        "verdict": difference.verdict if difference else None,
    }


def by_seed(results: Sequence[CellResult]) -> dict[int, float]:
    """Return the metric of each seed."""
    return {result.cell.seed: float(result.metric) for result in results if result.metric is not None}


def paired_baseline(run: Run, setting: Cell) -> Cell | None:
    """Return the setting that `setting` is compared with; None if it is that itself, or there is none.

    Full residuals in the gradient's own precision and all else alike, gradients kept if there is a choice.
    """
    same: tuple[str, ...] = ("model", "world_size", "backend", "steps", *SAME_WORK)
    wanted: dict[str, Any] = {"scheme": "baseline", "residual_dtype": None, "options": ()}
    if setting.compressor == "none":
        wanted["compressor"] = "topk"
    else:
        same += ("compressor", "density")
    known = run.once(("paired baselines", same), lambda: finished_by(run, same, wanted))
    found = known.get(tuple(getattr(setting, name) for name in same), [])
    nearest = min(found, key=lambda one: (one.gradients != "kept", abs(one.density - USUAL_DENSITY)), default=None)
    return None if nearest == setting else nearest


def _columns(name: str, found: Interval | None) -> Record:
    return {f"{name}_mean": found.mean if found else None, f"{name}_half_width": found.half_width if found else None}


def _text(record: Record) -> str:
    value, half_width = record["metric_mean"], record["metric_half_width"]
    if half_width is None:
        return f"{metric_value(value)}, n = {record['seeds']}: no interval"
    text = f"{metric_value(value)} ± {_as_exact(half_width, value)}, n = {record['seeds']}"
    if record["difference_mean"] is None:
        return text
    difference, width = signed(record["difference_mean"], value), record["difference_half_width"]
    difference += f" ± {_as_exact(width, value)}: {record['verdict']}" if width is not None else ""
    difference += f", {record['pairs']} seeds in common" if record["pairs"] != record["seeds"] else ""
    return f"{text} ({difference})"


def _as_exact(half_width: float, value: float) -> str:
    """To as many digits as value is written."""
    return f"{half_width:.{4 if abs(value) < 1 else 3}f}"
