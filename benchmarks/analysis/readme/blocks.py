"""All blocks, by the name in their comments: the function that makes the text from committed measurements."""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.margins import margin_and_spread, metrics_of, seeds_needed
from benchmarks.analysis.labels import ABSENT, markdown_table
from benchmarks.analysis.readme import precision_block as precision
from benchmarks.analysis.readme import seeds_block as seeds
from benchmarks.analysis.readme import smoke
from benchmarks.analysis.readme.levels_block import two_levels
from benchmarks.analysis.readme.links_block import links, merged_links, slow_link_claim
from benchmarks.analysis.readme.measured import Measured, Row
from benchmarks.analysis.readme.one_gpu_block import one_gpu, one_gpu_short
from benchmarks.analysis.readme.one_gpu_words import one_gpu_found
from benchmarks.analysis.readme.rivals_block import RIVALS, rivals
from benchmarks.analysis.readme.saved_block import saved_states
from benchmarks.analysis.readme.sharded_block import sharded
from benchmarks.analysis.readme.slices_block import slices_time
from benchmarks.analysis.readme.systems_block import SYSTEMS, system_paragraphs, systems, systems_over_slurm
from benchmarks.analysis.readme.ways_block import TABLES
from benchmarks.analysis.statistics import power
from benchmarks.analysis.tables.intervals import readme_table

Make = Callable[[Measured], str | None]
"""Makes text from measurements; None keeps the present text, as nothing was measured yet."""

ORIGINS = (smoke.FILE, seeds.FILE, "precision", RIVALS, SYSTEMS)


def _beside(name: str, measured: Measured) -> str:
    return TABLES[name](measured.load("beside"))


POWERS = (3, 5, 9)
"""Numbers of seeds in the table of powers."""


def slow_links(measured: Measured) -> str:
    """Seconds of a step over a slow link, the part spent waiting for messages, and the speed-up."""
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
    """The probability that so many seeds show a kept metric, by the small models' spread, and the seeds needed."""
    book, metrics = load_claims(), metrics_of(measured.load("mini")["rows"])
    found = [margin_and_spread(book, one, {}) for one in metrics.values()]
    rows = [[f"of {seeds} seeds", *(f"{100 * power(seeds, m / s):.0f} %" for m, s in found)] for seeds in POWERS]
    rows[0][0] = f"power {rows[0][0]}"
    rows.append(["seeds for 80 %", *(str(seeds_needed(margin, spread) or ABSENT) for margin, spread in found)])
    return markdown_table(("", *metrics), rows, "l" + "r" * len(found))


BLOCKS: Mapping[str, Make] = {
    "residual-share": smoke.residual_share,
    "streamed": smoke.streamed,
    "shared": partial(smoke.held, setting=smoke.SHARED),
    "both": smoke.both,
    "control": smoke.control,
    "floor": partial(smoke.held, setting=smoke.FLOOR),
    "first-table": smoke.first_table,
    "price": seeds.price,
    "streaming-time": seeds.streaming_time,
    "streaming-time-short": seeds.streaming_time_short,
    "five-seeds": lambda measured: readme_table(measured.load(seeds.FILE)["rows"]),
    "five-seeds-words": seeds.five_seeds_words,
    "compression-costs": seeds.compression_costs,
    "residuals-matter": seeds.residuals_matter,
    "precision": precision.precision_table,
    "precision-words": precision.precision_words,
    "settled": precision.settled_words,
    "settled-claim": precision.settled_claim,
    "precision-expected": precision.precision_expected,
    "slow-links": slow_links,
    "two-levels": lambda measured: two_levels(measured.load("two-levels")),
    "links": links,
    "slow-link-claim": slow_link_claim,
    "merged-links": merged_links,
    "saved-states": lambda measured: saved_states(measured.load("saved-states")),
    "slices-time": slices_time,
    "sharded": lambda measured: sharded(measured.load("sharded")),
    "powers": powers,
    "one-gpu": one_gpu,
    "one-gpu-short": one_gpu_short,
    "one-gpu-found": one_gpu_found,
    "rivals": rivals,
    "systems": systems,
    "system-paragraphs": system_paragraphs,
    "systems-slurm": systems_over_slurm,
    **{f"beside-{name}": partial(_beside, name) for name in TABLES},
    **{f"origin-{name}": partial(Measured.origin, name=name) for name in ORIGINS},
}
