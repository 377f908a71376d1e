"""The comparisons of compressors in docs/rivals.md and of systems in docs/systems.md."""

import textwrap
from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import ABSENT, markdown_table, metric_heading
from benchmarks.analysis.readme.measured import Measured, listed, machine
from benchmarks.analysis.rivals.rivals_command import rivals_table
from benchmarks.analysis.rivals.systems_rows import DENSE
from benchmarks.analysis.rivals.systems_view import UNSLOWED, is_beyond, milliseconds, systems_table

Row = dict[str, Any]
RIVALS, PACE = "rivals", "rivals-pace"
SYSTEMS, OVER_SLURM = "systems", "systems-slurm"
WIDTH = 120
"""Most characters in a line of the page."""


def rivals(measured: Measured) -> str:
    """Return a table for each model, with the speeds of settings that were timed in turn."""
    rows = measured.load(RIVALS)["rows"]
    timed = measured.load(PACE)
    speeds = {(row["model"], row["compressor"], row["scheme"], row["density"]): row for row in timed["rows"]}
    of_model = grouped((row["model"], row) for row in rows)
    tables = [f"{metric_heading(its[0])}:\n\n{rivals_table(its, speeds)}" for its in of_model.values()]
    where = timed["measured"]
    rounds = f"{timed['rounds']} rounds of {timed['steps']} steps"
    on = f"{machine(where['cpu'], where['cores'])}, commit `{where['commit'][:7]}`"
    return "\n\n".join([*tables, f"Speeds: {rounds} on {on}."])


def systems(measured: Measured) -> str:
    """Return a table for each model."""
    rows = measured.load(SYSTEMS)["rows"]
    of_model = grouped((row["model"], row) for row in rows)
    return "\n\n".join(f"{metric_heading(its[0])}:\n\n{systems_table(its)}" for its in of_model.values())


def systems_over_slurm(measured: Measured) -> str:
    """Return where systems on cluster nodes were measured, over which links, and the time of a step of each."""
    loaded = measured.load(OVER_SLURM)
    where = f"Measured: {measured.origin(OVER_SLURM)}. Links slowed to: {loaded.get('links') or UNSLOWED}."
    return f"{textwrap.fill(where, WIDTH)}\n\n{_step_times(loaded['rows'])}"


def _step_times(rows: list[Row]) -> str:
    """Return a table of milliseconds of a step: a row for each system, a column for each model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    of_system = grouped((row["title"], (row["model"], milliseconds(row))) for row in rows)
    body = [[title, *(dict(its).get(model, ABSENT) for model in models)] for title, its in of_system.items()]
    return markdown_table(["ms a step", *models], body, "l" + "r" * len(models))


def system_paragraphs(measured: Measured) -> str:
    """Return a paragraph for each system: the statement of its source, and on which models it lost metric."""
    rows = measured.load(SYSTEMS)["rows"]
    systems = dict.fromkeys(row["system"] for row in rows)
    return "\n\n".join(_paragraph([row for row in rows if row["system"] == name]) for name in systems)


def _paragraph(rows: list[Row]) -> str:
    words = f"**{rows[0]['title']}.** {rows[0]['about']}{_found(rows)}"
    return textwrap.fill(words, WIDTH, break_on_hyphens=False)


def _found(rows: list[Row]) -> str:
    """Return on which models a system of several seeds lost more than its interval; "" for other systems."""
    if rows[0]["system"] == DENSE or any(row["lost_half_width"] is None for row in rows):
        return ""
    worse = [row["model"] for row in rows if is_beyond(row) and row["lost_mean"] > 0]
    other = [row["model"] for row in rows if row["model"] not in worse]
    seen = [f"worse on {listed(worse)}"] * bool(worse) + [f"no loss seen on {listed(other)}"] * bool(other)
    return f" *Found:* {'; '.join(seen)}."
