"""Five sentences on what a run shows, computed from its records; without records they say so."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.analysis.claims.claim import NOT_RUN, STATUSES, LedgerRow
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import METRIC_WORDS, metric_value, short_labels, signed
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.readme.measured import listed, span
from benchmarks.analysis.table import CELL_COLUMNS, Record, Table
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from resireduce.scheme import COMPRESSORS

MOST = 4
"""Number of models whose metrics are named; the tables have all."""
FULL = ("baseline", "kept", None)
"""Scheme, gradients and residual_dtype of the setting that savings are measured against."""
PLAIN = "without compression"


def sentences(run: Run, tables: Sequence[Table], judged: Sequence[LedgerRow]) -> list[tuple[str, str]]:
    """Return (topic, sentence) pairs, with the names of settings between asterisks."""
    records = {table.name: table.records for table in tables}
    return [
        ("Run", what_ran(run)),
        ("Memory", best_saving(records.get("memory", []), records.get("accuracy", []))),
        ("Streaming", streaming(run)),
        ("Messages", messages(run)),
        ("Claims", claims(judged)),
    ]


def what_ran(run: Run) -> str:
    """Say how many cells finished, what they cover, and why others did not."""
    missing = f": {listed([f'{count} {status}' for status, count in run.why_missing()])}" if run.holes else ""
    if not run.results:
        return f"Nothing has been measured: none of {_counted(len(run.cells), 'cell')} has finished{missing}."
    finished = {setting: results for setting, results in run.settings().items() if results}
    labels, models = set(short_labels(list(finished))), {setting.model for setting in finished}
    seeds = sorted(map(len, finished.values()))
    each = _counted(seeds[0], "seed") if seeds[0] == seeds[-1] else f"{seeds[0]} to {seeds[-1]} seeds"
    text = f"{len(run.results)} of {_counted(len(run.cells), 'cell')} finished: {_counted(len(labels), 'setting')} on "
    text += f"{_counted(len(models), 'model')}, {each} each"
    return f"{text}; {len(run.holes)} did not{missing}." if run.holes else f"{text}."


def best_saving(memory: Sequence[Record], accuracy: Sequence[Record]) -> str:
    """Say which setting with residuals holds least, of those on the most models, and what that does to the metric."""
    known = [one for one in memory if one["normalised"] is not None and one["scheme"] != "none"]
    known = [one for one in known if (one["scheme"], one["gradients"], one["residual_dtype"]) != FULL]
    whole = [one for one in accuracy if one["data"] == "real" and one["steps"] is None]
    compared = {_cell(one): one for one in whole if one["difference_mean"] is not None}
    # Settings whose effect on the metric is known come first.
    known = [one for one in known if _cell(one) in compared] or known
    of_label = grouped(zip(short_labels([_cell(one) for one in known]), known, strict=True))
    if not of_label:
        return "What a scheme saves was not measured: that takes a finished cell of it, and one of *baseline, kept*."
    most = max(map(len, of_label.values()))
    label = min(
        (label for label, its in of_label.items() if len(its) == most),
        key=lambda label: sum(one["normalised"] for one in of_label[label]),
    )
    saved = span([100 * (1 - one["normalised"]) for one in of_label[label]], 1)
    text = f"Of all with residuals *{label}* holds least, {saved} % less than *baseline, kept*"
    changes = [compared[cell] for one in of_label[label] if (cell := _cell(one)) in compared]
    if not changes:
        return f"{text}; what that does to the metric was not measured."
    more = f", and {len(changes) - MOST} more models" if len(changes) > MOST else ""
    sure = "" if any(one["difference_half_width"] is not None for one in changes) else "; one seed has no interval"
    return f"{text}; the metric differs by {listed([_change(one) for one in changes[:MOST]])}{more}{sure}."


def _change(record: Record) -> str:
    """Return the difference of a setting's metric from the baseline's, with half of its interval if it has one."""
    half, name = record["difference_half_width"], record["metric_name"]
    text = signed(record["difference_mean"], record["metric_mean"])
    text += "" if half is None else f" ± {metric_value(half)} ({record['verdict']})"
    return f"{text} {METRIC_WORDS.get(name, name)} on {record['model']}"


def streaming(run: Run) -> str:
    """Say what streamed gradients save against kept ones, all else equal, and whether they change a metric."""
    settings = run.settings()
    streamed = [one for one in settings if one.gradients == "streamed"]
    both = [(one, replace(one, gradients="kept")) for one in streamed]
    both = [(one, kept) for one, kept in both if one.update == kept.update and settings.get(kept)]
    pairs = [(settings[one], settings[kept]) for one, kept in both if settings[one]]
    if not pairs:
        return "Streamed gradients were not compared: no setting finished with streamed and with kept ones."
    between, fullest = (
        span([100 * (1 - _largest(one, name) / _largest(other, name)) for one, other in pairs], 1)
        for name in ("total_bytes", "peak_states_bytes")
    )
    text = f"Streamed gradients leave {between} % less than kept ones between steps, at the fullest moment {fullest} % "
    text += "less"
    compared = [alike for one, other in pairs if (alike := _alike(one, other)) is not None]
    if not compared:
        return f"{text}; metrics were not compared."
    return f"{text}; the metric is the same in every digit in {sum(compared)} of {_counted(len(compared), 'setting')}."


def _alike(results: Sequence[CellResult], others: Sequence[CellResult]) -> bool | None:
    """Return whether all common seeds have the same metric; None without any, or if inputs were random."""
    metrics = {one.cell.seed: one.metric for one in others if one.cell.data == "real"}
    found = [one.metric == metrics[one.cell.seed] for one in results if one.cell.seed in metrics]
    return all(found) if found else None


def _largest(results: Sequence[CellResult], name: str) -> int:
    return max(int(getattr(result, name) or 0) for result in results)


def messages(run: Run) -> str:
    """Say how long ranks waited for messages, with and without compression."""
    timed = [one for one in run.results.values() if one.phase_seconds.get("step") and one.cell.world_size > 1]
    phases = [(_sent(one.cell), one.phase_seconds) for one in timed if "communicate" in one.phase_seconds]
    shares = grouped((name, 100 * seconds["communicate"] / seconds["step"]) for name, seconds in phases)
    if not shares:
        return "What is sent was not measured: no record has the time that ranks wait for messages."
    most = sorted(shares, key=lambda name: (name != PLAIN, -len(shares[name])))[:3]
    texts = [f"{span(shares[name], 1)} % of a step {name}" for name in most]
    return f"Ranks waited for messages for {listed(texts)}; bytes are in records of cells that observe contraction."


def _sent(cell: Cell) -> str:
    """Return in words what is sent of a gradient."""
    if cell.compressor == "none":
        return PLAIN
    density = f" at density {cell.density:g}" if COMPRESSORS[cell.compressor].selects else ""
    return f"with {cell.compressor}{density}"


def claims(judged: Sequence[LedgerRow]) -> str:
    """Say how many claims have each status, and on how many seeds and what hardware they were tested."""
    if not judged:
        return "No claim was looked at."
    supported, contradicted, still_open, untested = (sum(one.status == status for one in judged) for status in STATUSES)
    small = sum(one.scope == "small models" for one in judged if one.status != NOT_RUN)
    text = f"Of {_counted(len(judged), 'claim')} {supported} are supported and {contradicted} contradicted, "
    text += f"{still_open} stay open and {untested} cannot be tested by these records"
    return f"{text}; {small} of the verdicts are on small models in place of the paper's." if small else f"{text}."


def _cell(record: Record) -> Cell:
    return Cell(**{name: record[name] for name in CELL_COLUMNS})


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
