"""The comparison of compressors in docs/rivals.md, from rivals.json."""

from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.readme.measured import Measured, machine
from benchmarks.analysis.rivals.rivals_command import rivals_table

RIVALS, PACE = "rivals", "rivals-pace"


def rivals(measured: Measured) -> str:
    """Return a table for each model, with speeds where settings have been timed in turn."""
    rows = measured.load(RIVALS)["rows"]
    timed = measured.load(PACE) if measured.has(PACE) else None
    speeds = None if timed is None else _speeds(timed["rows"])
    of_model = grouped((row["model"], row) for row in rows)
    tables = [f"{model}, {its[0]['metric_name']}:\n\n{rivals_table(its, speeds)}" for model, its in of_model.items()]
    after = "" if timed is None else f"\n\nSpeeds: {_timed_on(timed)}."
    return "\n\n".join(tables) + after


def _speeds(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(row["model"], row["compressor"], row["scheme"], row["density"]): row for row in rows}


def _timed_on(timed: dict[str, Any]) -> str:
    where = timed["measured"]
    rounds = f"{timed['rounds']} rounds of {timed['steps']} steps"
    return f"{rounds} on {machine(where['cpu'], where['cores'])}, commit `{where['commit'][:7]}`"
