"""Claims about time: the loss of throughput, and the time of a whole training, against the other side.

Over several seeds the interval is Student's t of the paired losses. With one seed of each, the interval of throughput
comes from the means of successive blocks of steps ("batch means": neighbouring steps depend on each other, blocks
hardly do; Law, "Simulation modeling and analysis", section 9.5). It holds for these two runs only, which the reason
says. On a CPU there is no such interval: other load on its cores differs more between runs than within one.
"""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from benchmarks.analysis.claims.claim import INCONCLUSIVE, Undecided, Verdict, below, bounds, number, written
from benchmarks.analysis.claims.metric_claims import BOTH, margin_of
from benchmarks.analysis.claims.select import Case, Comparison, common_seeds, on_cpu
from benchmarks.analysis.statistics import CONFIDENCE, Interval, interval, p_beyond, t_quantile
from benchmarks.core.record import CellResult

BLOCKS = 10
HOSTS = 3
"""Most hosts of a side that are named."""
UNIT = "%"


def lost_time(case: Case, name: str) -> Verdict:
    """Judge the loss of steps_per_second or the rise of wall_seconds; the whole interval must be below the margin."""
    found = case.only
    seeds = common_seeds(found, *BOTH)
    if odd := _other_hosts(found, seeds):
        raise Undecided(odd, seeds=len(seeds), results=found.records(*BOTH))
    loss, how = _loss(found, seeds, name)
    margin, within = margin_of(case.book, case.limits), bounds(loss)
    word = "loss of throughput" if name == "steps_per_second" else "longer by"
    reason = f"{word} {written(loss.mean, within, UNIT)}, margin {number(margin.value)}; {how}"
    return Verdict(
        status=below(within, margin.value) if within and loss.half_width else INCONCLUSIVE,
        reason=reason if within is None or loss.half_width else f"{reason}, which have no spread to judge by",
        value=loss.mean,
        interval=within,
        published=case.published(),
        unit=UNIT,
        tolerance=f"95 % interval of the loss below {margin.value:g} % ({margin.reason})",
        seeds=len(seeds),
        p_value=p_beyond(loss, margin.value, degrees=None if len(seeds) > 1 else BLOCKS - 1),
        results=found.records(*BOTH),
    )


def _loss(found: Comparison, seeds: Sequence[int], name: str) -> tuple[Interval, str]:
    """Return the loss in per cent, and the source of its interval."""
    pairs = [tuple(found.results[role][seed] for role in BOTH) for seed in seeds]
    values = [_loss_of(one, other, name) for one, other in pairs]
    if len(values) >= 2:
        over_seeds = interval(values)
        assert over_seeds is not None
        return over_seeds, f"over {len(values)} seeds"
    if name == "steps_per_second" and not any(map(on_cpu, pairs[0])) and (over_blocks := _block_interval(*pairs[0])):
        return over_blocks, f"one run each, over {BLOCKS} blocks of steps"
    return Interval(values[0], None, 1), "n = 1: no interval"


def _other_hosts(found: Comparison, seeds: Sequence[int]) -> str | None:
    """Return which hosts each side has for itself, if it is they that tell the sides apart.

    Where each training has hosts of its own, as under Slurm, those of one side are no faster than those of the other
    but by chance, which seeds show.
    """
    places = [[_hosts(found.results[role][seed]) for seed in seeds] for role in BOTH]
    mine, others = (set().union(*side) for side in places)
    if not mine or not others or mine & others or len({*places[0], *places[1]}) == 2 * len(seeds):
        return None
    names = " and ".join(", ".join(sorted(side)[:HOSTS]) for side in (mine, others))
    return f"the two sides have no host in common, {names}: a faster one counts for its side"


def _hosts(record: CellResult) -> frozenset[str]:
    given = record.provenance.get("ranks_per_host")
    return frozenset(given) if isinstance(given, dict) else frozenset()


def _loss_of(one: CellResult, other: CellResult, name: str) -> float:
    """Return the loss in per cent: a longer time or a lower speed."""
    ratio = float(getattr(one, name) or 0) / float(getattr(other, name) or math.inf)
    return 100 * (ratio - 1 if name == "wall_seconds" else 1 - ratio)


def _block_interval(one: CellResult, other: CellResult) -> Interval | None:
    """Return the loss computed from mean seconds of blocks of steps; None if there are too few steps."""
    blocks = [_block_means(result.step_seconds) for result in (one, other)]
    if not all(blocks):
        return None
    (mine, mine_error), (others, others_error) = ((mean(b), stdev(b) / math.sqrt(BLOCKS)) for b in blocks)
    ratio = others / mine
    # First-order error of the ratio of two independent means.
    error = ratio * math.hypot(mine_error / mine, others_error / others)
    return Interval(100 * (1 - ratio), 100 * t_quantile((1 + CONFIDENCE) / 2, BLOCKS - 1) * error, 1)


def _block_means(seconds: Sequence[float]) -> list[float]:
    """Return the means of BLOCKS equal stretches; [] if they have fewer than two steps."""
    size = len(seconds) // BLOCKS
    if size < 2:
        return []
    return [mean(seconds[size * i : size * (i + 1)]) for i in range(BLOCKS)]
