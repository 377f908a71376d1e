"""The tables of a run: memory, moments, accuracy, throughput and distributions."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis.grouping import first_of, starts_of, together
from benchmarks.analysis.labels import ABSENT, TIMES, mebibytes, metric_value, percent, short_labels, signed
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
    hole_text,
    setting_record,
)
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.rank_memory import BANDS, unpack_moments
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult

# --- The memory table ---

MEMORY_HEAD = ["P", "G", "R", "O", "Total", "Normalised", "In flight", "Peak normalised"]
MEMORY_COLUMNS = (*STATE_FIELDS, "total_bytes", "normalised", "in_flight_bytes", "peak_normalised")
MEMORY_READING = (
    "MiB of one rank: parameters P, gradients G, residuals R, optimizer states O, held at a step boundary; in flight: "
    "dense gradients and messages beside them at the fullest moment of a step. 100 % is the total of top-k with full "
    "residual and kept gradients (baseline, kept). Lower is better."
)


def memory(run: Run) -> Table:
    """Return the memory table of a run."""
    cells = together((setting.model, setting) for setting in run.settings)
    records = [memory_record(run, cell, run.settings[cell]) for cell in cells]
    starts, body = starts_of([cell.model for cell in cells]), []
    for i, (cell, label, record) in enumerate(zip(cells, short_labels(cells), records, strict=True)):
        shown = [(percent if name.endswith("normalised") else mebibytes)(record[name]) for name in MEMORY_COLUMNS]
        view = shown if record["seeds"] else [*[""] * 4, hole_text(run, cell), *[""] * 3]
        body.append([cell.model if i in starts else "", label, *view])
    return Table(
        name="memory",
        title="Memory",
        reading=MEMORY_READING,
        records=records,
        head=["Model", "Scheme, gradients", *MEMORY_HEAD],
        body=body,
        figure="benchmarks.analysis.charts.rows_chart:memory_chart",
        text_columns=2,
        group_starts=starts,
        columns=("model", "scheme", *MEMORY_COLUMNS),
    )


def memory_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's bytes, the largest over its seeds, and their ratios to its baseline's total."""
    record = setting_record(setting, results)
    for name in BYTE_FIELDS:
        record[name] = max((getattr(result, name) for result in results), default=None)
    baseline = baseline_results(run, setting)
    whole = max((int(result.total_bytes or 0) for result in baseline), default=None)
    record["baseline_total_bytes"] = whole
    known = bool(results) and bool(whole)
    record["normalised"] = record["total_bytes"] / whole if known else None
    record["peak_normalised"] = record["peak_states_bytes"] / whole if known else None
    return record


# --- The table of moments ---

MOMENTS_HEAD = ["Between steps", "At the fullest", "P", "O", "R", "Gradients", "Messages", "Where"]
MOMENTS_READING = (
    "MiB of one rank: model states between steps, and at the fullest moment of a step, and what that is made of: "
    "parameters P, optimizer states O, residuals R, gradients and averages, selections and messages. Where: how much "
    "of the step's operations lies before it. The figure has the whole step, from the start of its backward pass, over "
    "operations, not seconds, and in each title the fullest moment; activations are not counted. Lower is better."
)
MOMENTS_COLUMNS = ("total_bytes", "peak_states_bytes", *(f"peak_{name}_bytes" for name in BANDS))
OLDER = "Settings that are not here, because their records are from before a step was followed: {}."


def moments(run: Run) -> Table:
    """Return the table of a run, a row for each setting with a followed step; empty if there is none."""
    settings = together((setting.model, setting) for setting in run.settings)
    # The seed that holds most at its fullest moment; among equals one whose step was followed.
    fullest = {
        setting: max(results, key=lambda one: (one.peak_states_bytes or 0, bool(one.moments)))
        for setting in settings
        if (results := run.settings[setting])
    }
    shown = {cell: result for cell, result in fullest.items() if result.moments}
    records = [_moments_record(cell, run.settings[cell], result) for cell, result in shown.items()]
    starts, body = starts_of([cell.model for cell in shown]), []
    for i, (label, record) in enumerate(zip(short_labels(list(shown)), records, strict=True)):
        view = [*(mebibytes(record[name]) for name in MOMENTS_COLUMNS), percent(record["where"])]
        body.append([record["model"] if i in starts else "", label, *view])
    return Table(
        name="moments",
        title="Memory over one step",
        reading=MOMENTS_READING,
        records=records,
        head=["Model", "Scheme, gradients", *MOMENTS_HEAD],
        body=body,
        figure="benchmarks.analysis.charts.rows_chart:moments_chart",
        text_columns=2,
        group_starts=starts,
        notes=[OLDER.format(len(fullest) - len(shown))] if len(shown) < len(fullest) and records else [],
        drawn=[
            record | {"points": unpack_moments(result.moments)}
            for record, result in zip(records, shown.values(), strict=True)
        ],
        columns=("model", "scheme", *MOMENTS_COLUMNS, "where"),
    )


def _moments_record(setting: Cell, results: Sequence[CellResult], result: CellResult) -> Record:
    """Return the columns of a setting: bytes of each band at the fullest moment, and where in the step it is."""
    points = unpack_moments(result.moments)
    place = max(range(len(points)), key=lambda i: sum(points[i]))
    common = setting_record(setting, results) | {"seed": result.cell.seed}
    common |= {name: getattr(result, name) for name in MOMENTS_COLUMNS[:2]}
    common |= dict(zip(MOMENTS_COLUMNS[2:], points[place], strict=True))
    return common | {"where": place / max(1, len(points) - 1), "changes": result.moments["changes"]}


# --- The accuracy table ---

ACCURACY_READING = (
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
        for setting, results in run.settings.items()
    ]
    single = all(record["seeds"] <= 1 for record in records)
    head, body = by_model(run, records, partial(_text, single=single), headings(records))
    figure = "benchmarks.analysis.charts.rows_chart:accuracy_chart"
    notes = [*_notes(records), *((ONE_SEED,) if single else CAVEATS)]
    lacks = (SEVERAL,) if single else ()
    return Table("accuracy", "Accuracy", ACCURACY_READING, records, head, body, figure, notes=notes, lacks=lacks)


def accuracy_record(run: Run, setting: Cell, results: Sequence[CellResult]) -> Record:
    """Return a setting's metric and its difference to the baseline, with intervals."""
    values = by_seed(results)
    other = paired_baseline(run, setting)
    difference = interval(paired(values, by_seed(run.settings[other]))) if other is not None else None
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
    records = [throughput_record(run, setting, results) for setting, results in run.settings.items()]

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


# --- The distributions table: are residuals of a reusable group alike, and unlike those of others? (Fig. 4) ---

DISTRIBUTIONS = "distributions"
DISTANCES = ("wasserstein", "jensen_shannon")
DIGITS = {"within": 3, "between": 3, "ratio": 1}
DISTRIBUTIONS_HEAD = ["Model", "Scheme, gradients", "Ranks", "Groups"]
DISTRIBUTIONS_HEAD += ["Within", "Between", "Ratio", "JS within", "JS between", "JS ratio"]
OBSERVED = ("densities of residuals by group", "make run RUN=mini PART=distributions")
"""What a run without observing cells lacks, and the command that measures it."""
DISTRIBUTIONS_READING = (
    "Residuals of rank 0 after the last step: how far apart the values of two tensors are distributed, mean over pairs "
    "within one reusable group and of different groups. First the 1-Wasserstein distance, in standard deviations of "
    "the pair, then the Jensen-Shannon (JS) divergence of their histograms, in bits; 0 for equal distributions. A "
    "ratio between / within above 1 says that groups gather what is alike."
)


def distributions(run: Run) -> Table:
    """Return the distributions table of a run; empty if no cell observed them."""
    records: list[Record] = []
    body = []
    found = ((setting, one) for setting, results in run.settings.items() for one in results)
    observed = first_of(pair for pair in found if _is_whole(pair[1].observations.get(DISTRIBUTIONS)))
    labels = short_labels(list(observed))
    for (setting, result), label in zip(observed.items(), labels, strict=True):
        seen = result.observations[DISTRIBUTIONS]
        common = setting_record(setting, [result]) | {"seed": result.cell.seed, "bins": seen["bins"]}
        records.append(common | _columns("all", seen))
        records += [common | _columns(group["members"][0], group) for group in seen["groups"]]
        body.append([setting.model, label, str(setting.world_size), str(len(seen["groups"])), *_texts(seen)])
    return Table(
        DISTRIBUTIONS,
        "Distributions",
        DISTRIBUTIONS_READING,
        records,
        DISTRIBUTIONS_HEAD,
        body,
        figure="benchmarks.analysis.charts.curves_chart:densities_chart",
        text_columns=2,
        lacks=() if body else (OBSERVED,),
        notes=["One seed and one rank each. Distances of every group, and its densities: tables/distributions.csv."],
    )


def _is_whole(seen: Any) -> bool:
    """Return whether an observation is complete; a record is valid with any observations."""
    try:
        _texts(seen)
        for group in seen["groups"]:
            _columns(group["members"][0], group)
            float(group["standard_deviation"]), [len(density) for density in group["densities"]]
        return seen["bins"]["low"] < seen["bins"]["high"] and seen["bins"]["count"] > 0
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _columns(name: str, seen: dict[str, Any]) -> Record:
    """Return what was observed of a group, or of all: distances, and the fields that only a group has."""
    record: Record = {"group": name, "members": seen.get("members"), "shape": seen.get("shape")}
    for kind in DISTANCES:
        within, between = (seen[pairs][kind] for pairs in ("within", "between"))
        ratio = between / within if within and between is not None else None
        record |= {f"{kind}_within": within, f"{kind}_between": between, f"{kind}_ratio": ratio}
    record |= {f"pairs_{pairs}": seen[pairs]["pairs"] for pairs in ("within", "between")}
    return record | {name: seen.get(name) for name in ("standard_deviation", "densities")}


def _texts(seen: dict[str, Any]) -> list[str]:
    found = _columns("all", seen)
    values = [(found[f"{kind}_{what}"], digits) for kind in DISTANCES for what, digits in DIGITS.items()]
    return [ABSENT if value is None else f"{value:.{digits}f}" for value, digits in values]
