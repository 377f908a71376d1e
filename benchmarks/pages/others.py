"""Tables of slow links and of the power of a number of seeds."""

from benchmarks.claims.load import load_claims
from benchmarks.claims.power import margin_and_spread, metrics_of, power, seeds_needed
from benchmarks.pages.measured import Measured, Row
from benchmarks.report.labels import ABSENT, markdown_table

POWERS = (3, 5, 9)
"""Numbers of seeds in the table of powers."""


def slow_links(measured: Measured) -> str:
    """Seconds of a step over a slow link, those that wait for messages, and the speed-up."""
    cells = sorted(measured.load("slow-links")["cells"], key=lambda one: -one["median_step_seconds"])
    plain = next(one["median_step_seconds"] for one in cells if one["cell"]["compressor"] == "none")
    rows = []
    for one in cells:
        seconds = one["median_step_seconds"]
        waiting = one["phase_seconds"]["communicate"]
        rows.append([_link_label(one["cell"]), f"{seconds:.2f}", f"{waiting:.2f}", f"{plain / seconds:.1f}"])
    return markdown_table(("", "Seconds a step", "of them waiting for messages", "Speed-up"), rows, "lrrr")


def _link_label(cell: Row) -> str:
    if cell["compressor"] == "none":
        return "no compression"
    residual = (
        "" if cell["scheme"] == "none" else ", full residual" if cell["scheme"] == "baseline" else f", {cell['scheme']}"
    )
    density = f", density {cell['density']}" if cell["density"] < 1 else ""
    return f"`{cell['compressor']}`{density}{residual}"


def powers(measured: Measured) -> str:
    """How probably so many seeds show that a metric is kept, by the spread of the small models, and how many do."""
    book, metrics = load_claims(), metrics_of(measured.load("mini")["rows"])
    found = [margin_and_spread(book, one, {}) for one in metrics.values()]
    rows = [[f"of {seeds} seeds", *(f"{100 * power(seeds, m / s):.0f} %" for m, s in found)] for seeds in POWERS]
    rows[0][0] = f"power {rows[0][0]}"
    rows.append(["seeds for 80 %", *(str(seeds_needed(margin, spread) or ABSENT) for margin, spread in found)])
    return markdown_table(("", *metrics), rows, "l" + "r" * len(found))
