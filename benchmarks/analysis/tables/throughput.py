"""The throughput table: optimizer steps per second, and images or tokens."""

from collections.abc import Sequence
from statistics import mean

from benchmarks.analysis.labels import TIMES
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table, baseline_results, by_model, setting_record
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult

READING = (
    "Optimizer steps per second after warm-up, in brackets the ratio to baseline, kept, then the images or tokens of "
    "all ranks per second; higher is better. "
    "On processors shared with other work these vary from run to run."
)


def throughput(run: Run) -> Table:
    """Return the throughput table of a run."""
    records = [throughput_record(run, setting, results) for setting, results in run.settings().items()]
    head, body = by_model(run, records, _text, {})
    figure = "benchmarks.analysis.charts.rows_chart:throughput_chart"
    return Table("throughput", "Throughput", READING, records, head, body, figure)


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


def _text(record: Record) -> str:
    ratio = record["ratio_to_baseline"]
    text = f"{record['steps_per_second']:.2f}" + (f" ({ratio:.2f} {TIMES})" if ratio is not None else "")
    return text + (f", {record['units_per_second']:.0f} {record['unit']}/s" if record["units_per_second"] else "")
