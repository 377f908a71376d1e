"""All blocks by the name that their comments have: what makes the text, from which committed measurements."""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.beside.tables import TABLES
from benchmarks.pages import others, precision, seeds, settled, smoke
from benchmarks.pages.measured import Measured

Make = Callable[[Measured], str | None]
"""From measurements to text; None leaves what is there, as nothing was measured yet."""

ORIGINS = (smoke.FIRST, seeds.FILE, "precision")


def _beside(name: str, measured: Measured) -> str:
    return TABLES[name](measured.load("beside"))


def _origin(name: str, measured: Measured) -> str:
    return measured.origin(name)


BLOCKS: Mapping[str, Make] = {
    "residual-share": smoke.residual_share,
    "streamed": smoke.streamed,
    "shared": smoke.shared,
    "both": smoke.both,
    "control": smoke.control,
    "floor": smoke.floor,
    "first-table": smoke.first_table,
    "second-machine": smoke.second_machine,
    "second-table": smoke.second_table,
    "machines-apart": smoke.apart,
    "price": seeds.price,
    "streaming-time": seeds.streaming_time,
    "five-seeds": seeds.five_seeds,
    "five-seeds-words": seeds.five_seeds_words,
    "compression-costs": seeds.compression_costs,
    "residuals-matter": seeds.residuals_matter,
    "precision": precision.precision_table,
    "precision-words": precision.precision_words,
    "settled": settled.settled_words,
    "settled-claim": settled.settled_claim,
    "precision-expected": precision.precision_expected,
    "slow-links": others.slow_links,
    "powers": others.powers,
    **{f"beside-{name}": partial(_beside, name) for name in TABLES},
    **{f"origin-{name}": partial(_origin, name) for name in ORIGINS},
}
