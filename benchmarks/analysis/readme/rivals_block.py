"""The comparison of compressors in docs/rivals.md, from rivals.json."""

from typing import Any

from benchmarks.analysis.readme.measured import Measured, machine
from benchmarks.analysis.rivals.rivals_command import rivals_table

RIVALS, PACE = "rivals", "rivals-pace"


def rivals(measured: Measured) -> str:
    """Return a table for each model, with speeds where settings have been timed in turn."""
    rows = measured.load(RIVALS)["rows"]
    models = dict.fromkeys(row["model"] for row in rows)
    timed = measured.load(PACE) if measured.has(PACE) else None
    speeds = None if timed is None else _speeds(timed["rows"])
    tables = {model: rivals_table([row for row in rows if row["model"] == model], speeds) for model in models}
    after = "" if timed is None else f"\n\nSpeeds: {_timed_on(timed)}."
    return "\n\n".join(f"{model}, {_metric(model, rows)}:\n\n{table}" for model, table in tables.items()) + after


def _speeds(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(row["model"], row["compressor"], row["scheme"], row["density"]): row for row in rows}


def _timed_on(timed: dict[str, Any]) -> str:
    where = timed["measured"]
    rounds = f"{timed['rounds']} rounds of {timed['steps']} steps"
    return f"{rounds} on {machine(where['cpu'], where['cores'])}, commit `{where['commit'][:7]}`"


def _metric(model: str, rows: list[dict[str, str]]) -> str:
    return next(row["metric_name"] for row in rows if row["model"] == model)
