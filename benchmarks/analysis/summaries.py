"""`python -m benchmarks summary`: what the records of a run show, as JSON for results/reference and as tables.

intervals: each setting's metric over seeds, and its difference from the baseline's. tell: which models tell residual
schemes apart. rivals: what each compressor loses, sends and holds. systems: the same of the parts of a config. rates:
the best learning rate of each part and model, and the config that measures them on other seeds. tuned: the systems at
these rates, and what holds of them. reach: after how many steps each system reaches the level of the baseline's end.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml

from benchmarks.analysis import labels
from benchmarks.analysis.claims.evidence import print_doubts
from benchmarks.analysis.claims.sound import METRICS
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.load_run import Part, Run, load_run, provenance_rows
from benchmarks.analysis.statistics import CONFIDENCE, Interval, columns, interval, paired
from benchmarks.analysis.table import CELL_COLUMNS, by_seed
from benchmarks.analysis.tables.run_tables import USUAL_DENSITY, accuracy_record, memory_record, paired_baseline
from benchmarks.analysis.tuned import CLAIMS, judged, verdicts
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import DEFAULTS
from benchmarks.core.files import save_json, save_text, writable
from benchmarks.core.matrix import WORDS
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("kind", choices=KINDS, help="what is summed up")
    text = "the run's folder (default: that of the kind's own config); given again, runs are looked at as one"
    parser.add_argument("--run", type=Path, action="append", metavar="FOLDER", help=text)
    parser.add_argument("--output", type=Path, help="JSON file (default: KIND.json in the first run's folder)")


def main(args: argparse.Namespace) -> int:
    """Write the values and print their tables. Raises ConfigError, one line, if the run has not what they need."""
    make, show, usual = KINDS[args.kind]
    folders = args.run or [Path("results/runs") / usual.partition(" ")[0]]
    folder, run = folders[0], joined([load_run(one) for one in folders])
    missing = [hole for hole in run.holes.values() if not hole.has_diverged]
    if not run.results or (missing and args.kind in OF_WHOLE_RUNS):
        lacks = f"lacks {missing[0].name}: {missing[0].reason}" if missing else "is empty"
        raise ConfigError(f"run: {str(folder)!r} {lacks}; make it with: make run RUN={usual}")
    if run.notes:
        raise ConfigError(f"run: {str(folder)!r}: {run.notes[0]} Copy the run's config there, or measure anew")
    output = args.output or folder / f"{args.kind}.json"
    writable("output", output)
    values = make(run) | {"measured": dict(provenance_rows(run.results.values()))}
    save_json(values, output)
    if "config" in values:
        save_text(yaml.safe_dump(values["config"], sort_keys=False), output.with_suffix(".yaml"))
    print_doubts(run)
    print(show(values))
    if run.holes:
        print(f"\nMissing: {len(run.holes)} of {len(run.cells)} cells; see: python -m benchmarks report --run {folder}")
    print(output)
    return 0


def joined(runs: Sequence[Run]) -> Run:
    """Return several runs as one: of parts with one name, and of records of one cell, those of the last run count."""
    if len(runs) == 1:
        return runs[0]
    parts = {name: part for run in runs for name, part in run.parts.items()}
    cells = list(dict.fromkeys(cell for part in parts.values() for cell in part.cells))
    results = {cell: run.results[cell] for cell in cells for run in runs if cell in run.results}
    holes = {cell: run.holes[cell] for cell in cells for run in runs if cell in run.holes and cell not in results}
    doubts = {cell: run.doubts[cell] for cell in cells for run in runs if cell in run.doubts}
    return Run(runs[0].folder, cells, results, holes, [note for run in runs for note in run.notes], parts, doubts)


# --- Metrics over seeds, and their differences from the baseline's ---

HEAD = ("Model, metric", "Scheme, gradients", "Seeds", "Normalised", "Metric", "Against *baseline, kept*")
SHOWN = [("none", "none", "kept"), *(("topk", scheme, "kept") for scheme in ("none", "baseline", "w+2d"))]
SHOWN += [("topk", "w+2d", "streamed")]
"""Compressor, scheme and gradients of the rows in docs/results.md, at the usual density; the JSON has all others."""
USUAL: Row = {"world_size": 2, "residual_dtype": None, "options": {}, "observe": []}


def intervals(run: Run) -> Row:
    """Return each setting: its metrics by seed and their intervals, its share of the baseline's memory, its speed."""
    rows = []
    for setting, results in run.settings.items():
        if results:
            shares = memory_record(run, setting, results)
            beside = paired_baseline(run, setting) or setting
            if shares["normalised"] is None and (beside.scheme, beside.residual_dtype) == ("baseline", None):
                # The baseline has streamed gradients: kept ones count as many bytes as the parameters.
                for full in run.settings.get(beside, [])[:1]:
                    whole = int(full.total_bytes or 0) + int(full.parameters_bytes or 0)
                    shares |= {"normalised": shares["total_bytes"] / whole}
                    shares |= {"peak_normalised": shares["peak_states_bytes"] / whole}
            rows.append(
                {
                    **accuracy_record(run, setting, results),
                    "metrics": by_seed(results),
                    **{name: shares[name] for name in ("total_bytes", "normalised", "peak_normalised")},
                    "steps_taken": results[0].steps,
                    "steps_per_second": mean(float(one.steps_per_second or 0) for one in results),
                    "wall_seconds": mean(float(one.wall_seconds or 0) for one in results),
                }
            )
    return {"confidence": CONFIDENCE, "rows": rows}


def intervals_table(rows: Sequence[Row]) -> str:
    """Return the rows that docs/results.md shows as a Markdown table, grouped by model; all of them, if any has
    residuals of another precision."""
    shown = [[found[setting] for setting in SHOWN if setting in found] for found in usual_rows(rows).values()]
    if any(row["residual_dtype"] for row in rows):
        shown = list(grouped((row["model"], row) for row in rows).values())
    lines = [_interval_texts(row, label) for its in shown for row, label in zip(its, row_labels(its), strict=True)]
    return labels.markdown_table(HEAD, lines, "llrrrl")


def usual_rows(rows: Sequence[Row]) -> dict[str, dict[tuple[str, str, str], Row]]:
    """Return, by model, the rows of two ranks at the usual density, keyed by compressor, scheme and gradients."""
    found: dict[str, dict[tuple[str, str, str], Row]] = {row["model"]: {} for row in rows}
    for row in rows:
        at_usual = row["compressor"] == "none" or row["density"] == USUAL_DENSITY
        if at_usual and all(row[name] == value for name, value in USUAL.items()):
            found[row["model"]][row["compressor"], row["scheme"], row["gradients"]] = row
    return found


def row_labels(rows: Sequence[Row]) -> list[str]:
    """Return "scheme, gradients" for each row; rows of an earlier version lack fields that cells have since gained."""
    return labels.short_labels([Cell(**{name: row[name] for name in CELL_COLUMNS if name in row}) for row in rows])


def _interval_texts(row: Row, label: str) -> list[str]:
    difference = ""
    if row["difference_mean"] is not None:
        found = Interval(row["difference_mean"], row["difference_half_width"], row["pairs"])
        difference = f"{labels.signed_with_half(found.mean, found.half_width, 2)}, {found.verdict}"
        difference += f" ({row['pairs']} seeds in common)" if row["pairs"] != row["seeds"] else ""
    metric = labels.with_half(row["metric_mean"], row["metric_half_width"], 2)
    return [labels.metric_heading(row), label, str(row["seeds"]), labels.percent(row["normalised"]), metric, difference]


# --- Which models tell schemes apart: where training without residuals ends as well, a metric says nothing ---

COMPARED = {
    "dense": ("none", "none"),
    "baseline": ("topk", "baseline"),
    "w+2d": ("topk", "w+2d"),
    "none": ("topk", "none"),
}
"""Compressor and scheme of the settings that are compared, with kept gradients."""


def tells(run: Run) -> Row:
    """Return by model what is lost without residuals; a model tells if the loss's whole interval is above 0."""
    kept = grouped(((c.model, c.compressor, c.scheme), r) for c, r in run.results.items() if c.gradients == "kept")
    models = {}
    for model in dict.fromkeys(cell.model for cell in run.cells):
        metrics = {name: by_seed(kept[model, *setting]) for name, setting in COMPARED.items()}
        first = kept[model, *COMPARED["none"]][0]
        loss = _summary(_lost(first, metrics["baseline"], metrics["none"]))
        is_worse = loss["half_width"] is not None and loss["mean"] > loss["half_width"]
        models[model] = {"tells": is_worse, "metric_name": first.metric_name, "loss": loss}
        models[model] |= {name: _summary([*values.values()]) for name, values in metrics.items()}
    return {"models": models}


def _summary(values: Sequence[float]) -> Row:
    found = interval(values)
    return {"mean": found and found.mean, "half_width": found and found.half_width, "values": list(values)}


def _lost(one: CellResult, of: dict[int, float], metrics: dict[int, float]) -> list[float]:
    """Return by how much metrics are worse than others, seed by seed; `one` has the direction that is better."""
    return [difference if one.higher_is_better else -difference for difference in paired(of, metrics)]


def _tells_text(values: Row) -> str:
    return "\n".join(
        f"{model}: {'tells' if one['tells'] else 'does not tell'}: without residuals worse by "
        f"{labels.with_half(one['loss']['mean'], one['loss']['half_width'], 3)}"
        for model, one in values["models"].items()
    )


# --- Compressors beside one another: settings of a run whose cells observed `contraction` ---

OBSERVED = "contraction"
SEEN = {"contraction": "contraction", "cosine": "cosine", "density": "density_sent"}
"""Observed quantity of each step, and its column: the mean over seeds of the median over steps."""
HELD = ("residuals_bytes", "optimizer_states_bytes", "total_bytes", "peak_states_bytes")
RIVALS_COLUMNS: tuple[str, ...] = ("compressor", "density", "scheme", "seeds", "metric_mean", "metric_half_width")
RIVALS_COLUMNS += ("lost_mean", "lost_half_width", "sent_bytes", "density_sent", "contraction", "cosine")
RIVALS_COLUMNS += ("total_bytes", "step_seconds")


def rivals(run: Run) -> Row:
    """Return a row for each finished setting.

    A row has: model, compressor, scheme, density; seeds; metric_name, higher_is_better, metrics by seed, metric_mean
    and its half_width; lost_mean, lost_half_width and pairs, by how much the metric is worse than that of training
    without compression, seed by seed (None where that has not finished); sent_bytes of a rank's step, dense_bytes of
    them of small tensors; contraction, cosine and density_sent, None where a cell did not observe them; the most bytes
    held; step_seconds.
    """
    found = run.settings.items()
    dense = {setting.model: by_seed(results) for setting, results in found if setting.compressor == "none"}
    return {"rows": [_rival(results, dense.get(one.model, {})) for one, results in found if results]}


def _rival(results: Sequence[CellResult], dense: dict[int, float]) -> Row:
    """Return the row of one setting; `dense`: metrics to compare with."""
    first, metrics, seen = (
        results[0],
        by_seed(results),
        [one.observations.get(OBSERVED, {}).get("points") for one in results],
    )
    lost = interval(_lost(first, dense, metrics))
    timed = [median(result.step_seconds) for result in results if result.step_seconds]
    observed: Row = dict.fromkeys(("sent_bytes", "dense_bytes", *SEEN.values()))
    if all(seen):
        observed["sent_bytes"] = mean(median(point["bytes"] for point in points) for points in seen)
        observed["dense_bytes"] = first.observations[OBSERVED]["dense_bytes"]
        for name, column in SEEN.items():
            known = [[point[name] for point in points if point[name] is not None] for points in seen]
            observed[column] = mean(map(median, known)) if all(known) else None
    return {
        **{name: getattr(first.cell, name) for name in ("model", "compressor", "scheme", "density", "learning_rate")},
        "metric_name": first.metric_name,
        "higher_is_better": first.higher_is_better,
        "seeds": len(metrics),
        "metrics": metrics,
        **columns("metric", interval(list(metrics.values()))),
        **columns("lost", lost),
        "pairs": lost.n if lost else 0,
        **observed,
        **{name: max(getattr(result, name) for result in results) for name in HELD},
        "step_seconds": sum(timed) / len(timed) if timed else None,
    }


# --- Systems beside one another: the parts of a config, each one setting of a model ---

DENSE, BASELINE = "dense", "baseline"
"""The parts that accuracy (DENSE) and memory (BASELINE) of the others are compared with."""
SYSTEMS_COLUMNS: tuple[str, ...] = ("title", "learning_rate", "seeds", "metric_mean", "metric_half_width", "lost_mean")
SYSTEMS_COLUMNS += ("lost_half_width", "density_sent", "sent_bytes", "step_seconds", "held_share", "peak_share")


def systems(run: Run) -> Row:
    """Return a row for each system (a part of the run's config) and each model with finished cells, and slowed links.

    A row is like one of `rivals`, with the part DENSE as training without compression, plus: system, title, about;
    held_share and peak_share, the most bytes of model states between two steps and at the fullest moment of one, as
    shares of what the part BASELINE holds between steps (None while that has not finished).
    Raises ConfigError for a part with several settings of a model, as all cells without parts are.
    """
    for name, part in run.parts.items():
        for model, settings in grouped((cell.model, replace(cell, seed=0)) for cell in part.cells).items():
            if len(set(settings)) > 1:
                raise ConfigError(f"part {name}: {model} has several settings; give one for each model")
    found = {name: _finished(run, part) for name, part in run.parts.items()}
    rows = []
    for (name, its), part in zip(found.items(), run.parts.values(), strict=True):
        words = {"title": part.title or name, "about": part.about or name}
        for model, results in its.items():
            row = {"system": name, **words, **_rival(results, by_seed(found.get(DENSE, {}).get(model, [])))}
            whole = max((one.total_bytes or 0 for one in found.get(BASELINE, {}).get(model, [])), default=0)
            for share, held in (("held_share", "total_bytes"), ("peak_share", "peak_states_bytes")):
                row[share] = row[held] / whole if whole else None
            rows.append(row)
    return {"rows": rows, "links": links_words(run.results.values())}


def _finished(run: Run, part: Part) -> dict[str, list[CellResult]]:
    """Return the results of a part by model."""
    return grouped((cell.model, run.results[cell]) for cell in part.cells if cell in run.results)


def links_words(results: Iterable[CellResult]) -> str:
    """Return the rates to which links of nodes were slowed, and in how many cells; "" if none were."""
    found = [result.provenance.get("link_rates") for result in results]
    known = [one if isinstance(one, dict) else {} for one in found]
    rates = Counter(", ".join(f"{host} {rate}" for host, rate in one.items()) for one in known)
    texts = (f"{words or 'not slowed'} ({count} cell{'s' if count > 1 else ''})" for words, count in rates.items())
    return "; ".join(texts) if any(rates) else ""


# --- Learning rates: the best of each part and model, chosen on seeds that are not used again ---

MEASURED_SEEDS = 5
"""Seeds on which the best rates are measured: those after the ones that they were chosen on."""
RATES_COLUMNS = ("title", "optimizer", "tried", "best", "border")


def rates(run: Run) -> Row:
    """Return the best rate of each part and model, by the mean metric over the run's seeds, and the config of these.

    A rate at which training diverged has no metric, None. One at the border of its grid is marked, since a better one
    may lie beyond it. All parts are given the same number of trials. Raises ConfigError if none of a part finished.
    """
    tuned = {cell.seed for cell in run.cells}
    seeds = [max(tuned) + one for one in range(1, MEASURED_SEEDS + 1)]
    rows, parts = [], {}
    for name, part in run.parts.items():
        entries = []
        for model, cells in grouped((cell.model, cell) for cell in part.cells).items():
            first, tried = cells[0], dict[float, float | None]()
            metric_name, higher_is_better = METRICS[first.workload.task]
            for rate, its in sorted(grouped((cell.workload.learning_rate, cell) for cell in cells).items()):
                ended = by_seed([run.results[cell] for cell in its if cell in run.results])
                tried[rate] = mean(ended.values()) if len(ended) == len(its) else None
            finished = {rate: metric for rate, metric in tried.items() if metric is not None}
            if not finished:
                raise ConfigError(f"part {name}: {model} diverged at each rate, {[*tried]}; give lower ones")
            best = (max if higher_is_better else min)(finished, key=lambda rate: finished[rate])
            words = {"system": name, "title": part.title or name, "model": model, "metric_name": metric_name}
            chosen = {"tried": tried, "best": best, "border": best in (min(tried), max(tried))}
            rows.append({**words, "optimizer": first.workload.optimizer, **chosen})
            plain = replace(first, learning_rate=best, seed=0).to_dict()
            entries.append({key: plain[key] for key in plain if plain[key] not in (DEFAULTS.get(key), [], {})})
        parts[name] = {key: text for key in WORDS if (text := getattr(part, key))} | {"matrix": entries}
    return {"rows": rows, "config": {"run": "tuned", "defaults": {"seed": seeds}, "parts": parts}}


# --- Steps to a level of the metric: what a system needs beside the seconds of a step ---

REACH_COLUMNS = ("title", "seeds", "steps_mean", "steps_half_width", "metric_mean", "metric_name", "level")
SETTING = ("compressor", "scheme", "gradients", "residual_dtype", "density", "optimizer", "learning_rate")


def reach(run: Run) -> Row:
    """Return for each system and model after how many steps each seed reaches the model's level.

    The level is the metric at the end of the worst seed of the part BASELINE, which so reaches it with each. Between
    two evaluations the metric is taken as a straight line. A row has: system, title, model, the fields of SETTING,
    metric_name, higher_is_better, level; steps by seed (None where one diverged or stays short of it), their steps_mean
    and steps_half_width (None unless all reach it); metric_mean at the end; total_bytes and peak_states_bytes; curve:
    the mean metric after each evaluated step. Raises ConfigError if no part, or no seed, has what that needs.
    """
    if BASELINE not in run.parts:
        raise ConfigError(f"run: {str(run.folder)!r} has no part {BASELINE!r}, which sets the level; add it")
    ends = _finished(run, run.parts[BASELINE])
    rows = []
    for name, part in run.parts.items():
        finished = _finished(run, part)
        for model, cells in grouped((cell.model, cell) for cell in part.cells).items():
            results = finished.get(model, [])
            evaluated = {tuple(step for step, _ in one.metric_history) for one in results}
            if len(evaluated) != 1 or model not in ends:
                why = "evaluated after different steps" if results and model in ends else "none ended"
                raise ConfigError(f"part {name}: seeds of {model}, or of its baseline: {why}; measure anew")
            first, steps = results[0], dict[int, float | None].fromkeys(cell.seed for cell in cells)
            level = (min if first.higher_is_better else max)(by_seed(ends[model]).values())
            for one in results:  # of seeds that diverged it stays None
                steps[one.cell.seed] = steps_to(one.metric_history, level, bool(one.higher_is_better))
            reached = [one for one in steps.values() if one is not None]
            values = zip(*([value for _, value in one.metric_history] for one in results), strict=True)
            curve = zip(*evaluated, values, strict=True)
            rows.append(
                {"system": name, "title": part.title or name, "model": model}
                | {field: getattr(first.cell, field) for field in SETTING}
                | {"metric_name": first.metric_name, "higher_is_better": first.higher_is_better, "level": level}
                | {"seeds": len(steps), "steps": steps}
                | columns("steps", interval(reached) if len(reached) == len(steps) else None)
                | {"metric_mean": mean(by_seed(results).values())}
                | {name: max(getattr(one, name) or 0 for one in results) for name in HELD[2:]}
                | {"curve": [[step, mean(map(float, at))] for step, at in curve if None not in at]}
            )
    return {"rows": rows}


def steps_to(history: Sequence[Sequence[float | None]], level: float, higher_is_better: bool) -> float | None:
    """Return after how many steps a metric first is at least as good as `level`; None if it never is.

    history: step and metric of each evaluation, in their order; between two of them the metric is a straight line, and
    before the first one nothing is known.
    """
    sign = 1 if higher_is_better else -1
    before: tuple[float, float] | None = None
    for step, value in history:
        if step is None or value is None:  # what was no number
            continue
        over = sign * (value - level)
        if over >= 0:
            return float(step) if before is None else before[0] + (step - before[0]) * -before[1] / (over - before[1])
        before = float(step), over
    return None


def tuned(run: Run) -> Row:
    """Return the rows of systems, and what is judged of them; a part with a cell that diverged does not hold."""
    gone = {cell for cell, hole in run.holes.items() if hole.status == "diverged"}
    diverged = {(cell.model, name) for name, part in run.parts.items() for cell in part.cells if cell in gone}
    found = systems(run)
    return found | {"judged": judged(found["rows"], diverged)}


# --- The values of each kind, and their tables on a screen ---

JUDGED_COLUMNS: tuple[str, ...] = ("claim", "decides", "title", "against_title", "loss", "half_width", "margin")
JUDGED_COLUMNS += ("seeds", "held_share", "limit", "status")


def tables(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a Markdown table of these columns of the rows of each model."""
    its = grouped((row["model"], [_text(row.get(name)) for name in names]) for row in rows)
    return "\n\n".join(
        f"{model}\n{labels.markdown_table(names, body, 'l' + 'r' * (len(names) - 1))}" for model, body in its.items()
    )


def _text(value: Any) -> str:
    return labels.ABSENT if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _systems_text(values: Row) -> str:
    text = tables(values["rows"], SYSTEMS_COLUMNS)
    return f"{text}\n\nLinks slowed to: {values['links']}" if values["links"] else text


def _tuned_text(values: Row) -> str:
    said = [f"({claim}) {CLAIMS[claim]}: {status}" for claim, status in verdicts(values["judged"]).items()]
    return "\n\n".join([_systems_text(values), tables(values["judged"], JUDGED_COLUMNS), "\n".join(said)])


KINDS: dict[str, tuple[Callable[[Run], Row], Callable[[Row], str], str]] = {
    "intervals": (intervals, lambda values: intervals_table(values["rows"]), "mini PART=table"),
    "tell": (tells, _tells_text, "tell"),
    "rivals": (rivals, lambda values: tables(values["rows"], RIVALS_COLUMNS), "rivals"),
    "systems": (systems, _systems_text, "systems"),
    "rates": (rates, lambda values: tables(values["rows"], RATES_COLUMNS), "tune"),
    "tuned": (tuned, _tuned_text, "tuned"),
    "reach": (reach, lambda values: tables(values["rows"], REACH_COLUMNS), "tuned"),
}
"""By kind: what makes the values and their text, and the run that it was made for."""
OF_WHOLE_RUNS = ("tell", "rates", "reach")
"""Kinds that compare equal numbers of trials: each cell has to have ended."""
