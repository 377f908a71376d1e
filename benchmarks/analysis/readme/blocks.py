"""All blocks, by the name in their comments: the function that makes the text from committed measurements."""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.metric_claims import margin_and_spread, metrics_of, seeds_needed
from benchmarks.analysis.labels import ABSENT, markdown_table
from benchmarks.analysis.readme import precision_block as precision
from benchmarks.analysis.readme import seeds_block as seeds
from benchmarks.analysis.readme import smoke
from benchmarks.analysis.readme.links_block import links, merged_links, sharded, slow_link_claim, slow_links, two_levels
from benchmarks.analysis.readme.measured import Measured
from benchmarks.analysis.readme.one_gpu_block import one_gpu, one_gpu_short, saved_at_the_peak, saved_states
from benchmarks.analysis.readme.one_gpu_words import one_gpu_found
from benchmarks.analysis.readme.systems_block import (
    RIVALS,
    SYSTEMS,
    rivals,
    system_paragraphs,
    systems,
    systems_over_slurm,
)
from benchmarks.analysis.readme.ways_block import TABLES
from benchmarks.analysis.statistics import power
from benchmarks.analysis.tables.intervals import readme_table

ORIGINS = (smoke.FILE, seeds.FILE, "precision", RIVALS, SYSTEMS)


def _beside(name: str, measured: Measured) -> str:
    return TABLES[name](measured.load("beside"))


POWERS = (3, 5, 9)
"""Numbers of seeds in the table of powers."""


def powers(measured: Measured) -> str:
    """The probability that so many seeds show a kept metric, by the small models' spread, and the seeds needed."""
    book, metrics = load_claims(), metrics_of(measured.load("mini")["rows"])
    found = [margin_and_spread(book, one, {}) for one in metrics.values()]
    rows = [[f"of {seeds} seeds", *(f"{100 * power(seeds, m / s):.0f} %" for m, s in found)] for seeds in POWERS]
    rows[0][0] = f"power {rows[0][0]}"
    rows.append(["seeds for 80 %", *(str(seeds_needed(margin, spread) or ABSENT) for margin, spread in found)])
    return markdown_table(("", *metrics), rows, "l" + "r" * len(found))


BLOCKS: Mapping[str, Callable[[Measured], str]] = {
    "residual-share": smoke.residual_share,
    "streamed": smoke.streamed,
    "shared": partial(smoke.held, setting=smoke.SHARED),
    "both": smoke.both,
    "control": smoke.control,
    "floor": partial(smoke.held, setting=smoke.FLOOR),
    "first-table": smoke.first_table,
    "price": seeds.price,
    "streaming-time": seeds.streaming_time,
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
    "two-levels": two_levels,
    "links": links,
    "slow-link-claim": slow_link_claim,
    "merged-links": merged_links,
    "saved-states": saved_states,
    "sharded": sharded,
    "powers": powers,
    "one-gpu": one_gpu,
    "one-gpu-short": one_gpu_short,
    "saved-at-the-peak": saved_at_the_peak,
    "one-gpu-found": one_gpu_found,
    "rivals": rivals,
    "systems": systems,
    "system-paragraphs": system_paragraphs,
    "systems-slurm": systems_over_slurm,
    **{f"beside-{name}": partial(_beside, name) for name in TABLES},
    **{f"origin-{name}": partial(Measured.origin, name=name) for name in ORIGINS},
}
