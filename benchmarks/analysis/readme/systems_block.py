"""The comparisons of compressors in docs/rivals.md and of systems in docs/systems.md."""

import textwrap
from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import ABSENT, signed_with_half
from benchmarks.analysis.readme.measured import Measured, machine
from benchmarks.analysis.rivals.rivals_command import rivals_table, share_sent
from benchmarks.analysis.rivals.systems_view import UNSLOWED, systems_table

Row = dict[str, Any]
RIVALS, PACE = "rivals", "rivals-pace"
SYSTEMS, OVER_SLURM = "systems", "systems-slurm"
WIDTH = 120
"""Most characters in a line of the page."""
DIGITS = 2
"""Decimals with which the page shows losses."""


def rivals(measured: Measured) -> str:
    """Return a table for each model, with the speeds of settings that were timed in turn."""
    rows = measured.load(RIVALS)["rows"]
    timed = measured.load(PACE)
    speeds = {(row["model"], row["compressor"], row["scheme"], row["density"]): row for row in timed["rows"]}
    of_model = grouped((row["model"], row) for row in rows)
    tables = [f"{model}, {its[0]['metric_name']}:\n\n{rivals_table(its, speeds)}" for model, its in of_model.items()]
    where = timed["measured"]
    rounds = f"{timed['rounds']} rounds of {timed['steps']} steps"
    on = f"{machine(where['cpu'], where['cores'])}, commit `{where['commit'][:7]}`"
    return "\n\n".join([*tables, f"Speeds: {rounds} on {on}."])


def systems(measured: Measured, name: str = SYSTEMS) -> str:
    """Return a table for each model of the file of that name."""
    rows = measured.load(name)["rows"]
    of_model = grouped((row["model"], row) for row in rows)
    return "\n\n".join(f"{model}, {its[0]['metric_name']}:\n\n{systems_table(its)}" for model, its in of_model.items())


def systems_over_slurm(measured: Measured) -> str:
    """Return where systems on cluster nodes were measured, over which links, and their tables."""
    links = measured.load(OVER_SLURM).get("links") or UNSLOWED
    where = textwrap.fill(f"Measured: {measured.origin(OVER_SLURM)}. Links slowed to: {links}.", WIDTH)
    return f"{where}\n\n{systems(measured, OVER_SLURM)}"


def system_paragraphs(measured: Measured) -> str:
    """Return a paragraph for each system: the statement of its source, and the findings for each model."""
    rows = measured.load(SYSTEMS)["rows"]
    systems = dict.fromkeys(row["system"] for row in rows)
    return "\n\n".join(_paragraph([row for row in rows if row["system"] == name]) for name in systems)


def _paragraph(rows: list[Row]) -> str:
    found = "; ".join(map(_found, rows))
    return textwrap.fill(f"**{rows[0]['title']}.** {rows[0]['about']} *Found:* {found}.", WIDTH, break_on_hyphens=False)


def _found(row: Row) -> str:
    lost = row["lost_mean"]
    words = ABSENT if lost is None else signed_with_half(lost, row["lost_half_width"], DIGITS)
    seen = lost is not None and round(abs(lost), DIGITS) > 0  # 0.00 means no difference, however certain
    if seen and row["lost_half_width"] is not None and abs(lost) > row["lost_half_width"]:
        words = f"**{words}**"
    sent = "" if row["density_sent"] is None else f", {share_sent(row['density_sent'])} sent"
    return f"{row['model']} {words} {row['metric_name']} lost (n = {row['pairs']}{sent})"
