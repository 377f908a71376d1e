"""The kinds of tests, by name; adding one takes one function and one line here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev
from typing import Any

from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Criteria,
    Undecided,
    Verdict,
    below,
    bounds,
    number,
    written,
)
from benchmarks.analysis.claims.memory_claims import enough_bytes, maximum, saving, share, with_streamed
from benchmarks.analysis.claims.metric_claims import BOTH, better, identical, margin_of, not_worse
from benchmarks.analysis.claims.metric_claims import BOTH as PAIR
from benchmarks.analysis.claims.select import (
    Case,
    Comparison,
    Enough,
    all_but_control,
    check_there,
    common_seeds,
    on_cpu,
)
from benchmarks.analysis.statistics import CONFIDENCE, Interval, interval, p_beyond, t_quantile
from benchmarks.analysis.tables.distribution_table import KINDS as DISTANCES
from benchmarks.analysis.tables.distribution_table import NAME
from benchmarks.core.checks import is_number
from benchmarks.core.record import CellResult

# --- Claims about time: the loss of throughput, and the time of a whole training, against the other side ---


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
    for record in found.records(*BOTH):
        if steps := record.provenance.get("resumed_at_steps"):
            why = f"{record.cell.name} was stopped, and went on at step {steps[0]}: what it took is not that of one run"
            raise Undecided(why, seeds=len(seeds), results=found.records(*BOTH))
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


# --- The kinds of tests, by name; adding one takes one function and one line here ---


CONSISTENCY = "consistency"
"""The kind that needs no cells: `benchmarks.analysis.claims.consistency`."""
BOUNDS = ("tolerance", "at_least", "at_most")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a test compares and what decides it."""

    judge: Callable[[Case], Verdict]
    roles: tuple[str, ...]
    """Roles whose cells a claim must describe."""
    limits: tuple[str, ...]
    """Names allowed in a claim's `test`, besides `kind` and `why`."""
    measured: str
    """The entry of `benchmarks.analysis.claims.select.FREE`: which fields of a cell do not matter."""
    bears: str = "nothing"
    """The entry of `benchmarks.analysis.claims.ledger.BEARING`: which differences of origin leave the verdict open."""
    together: bool = False
    """Whether all groups and models form one comparison; else each is judged alone, and all must show the claim."""
    more_roles: Callable[[Mapping[str, Criteria]], Mapping[str, Criteria]] = dict
    """Adds the roles of cells that a claim's own roles can be computed from."""
    enough: Enough = all_but_control
    """Whether a group with cells of these roles can be judged."""
    published: tuple[str, ...] = ("value",)
    """The published numbers it takes; `tested` and `against` give a difference, `low` and `high` a range."""


def _of_bytes(judge: Callable[[Case], Verdict], roles: tuple[str, ...] = PAIR, together: bool = False) -> Kind:
    return Kind(
        judge=judge,
        roles=roles,
        limits=BOUNDS,
        measured="memory",
        together=together,
        more_roles=with_streamed,
        enough=enough_bytes,
    )


# --- Claims about distributions: residuals overlap within a group, and more than between groups ---


BITS = "bits"
DIVERGENCE = "jensen_shannon"
ROUNDING = 1e-6
"""By how much a sum of float32 shares may be above 1."""


def overlap(case: Case) -> Verdict:
    """Judge the Jensen-Shannon divergence within groups, and the ratio between / within of both distances.

    The ratio is the control: if the residuals of all groups are alike, overlap says nothing about groups. Every seed
    must show both.
    """
    check_there(case.only, "tested")
    records = case.only.records("tested")
    try:
        seen = [_distances(record) for record in records]
    except (LookupError, TypeError, ArithmeticError, ValueError):
        raise Undecided(f"{records[0].cell.name} holds no distances within and between groups") from None
    most, least = float(case.limits["at_most"]), float(case.limits["ratio"])
    within, ratio = max(one[0] for one in seen), min(one[1] for one in seen)
    open_or_not = REPRODUCED if ratio >= least else INCONCLUSIVE
    status = NOT_REPRODUCED if within > most or ratio <= 1 else open_or_not
    text = f"within groups {number(within, 3)} bits (0 equal, 1 apart), at most {most:g}; between groups "
    text += f"{number(ratio, 1)} times as far, at least {least:g}; {len(records)} seed(s), one rank"
    return Verdict(
        status=status,
        reason=text,
        value=within,
        unit=BITS,
        tolerance=f"divergence within groups at most {most:g} bits, between groups {least:g} times as far or more",
        seeds=len(records),
        results=records,
    )


def _distances(record: CellResult) -> tuple[float, float]:
    """Return the divergence within groups, and the ratio between / within.

    Raises LookupError and others if a distance is missing, ValueError if it is none: a number above 0, or from 0 to 1
    bits for a divergence.
    """
    seen = record.observations[NAME]
    values = [seen[where][kind] for where in ("within", "between") for kind in DISTANCES]
    if not all(is_number(value) and math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("distances are numbers, 0 or more")
    if max(seen[where][DIVERGENCE] for where in ("within", "between")) > 1 + ROUNDING:
        raise ValueError("a divergence is at most 1 bit")
    return float(seen["within"][DIVERGENCE]), min(seen["between"][kind] / seen["within"][kind] for kind in DISTANCES)


# --- The table of all kinds ---


OF_TIMES: dict[str, Any] = {"roles": PAIR, "limits": ("margin", "noise"), "bears": "times"}
KINDS: dict[str, Kind] = {
    "share": _of_bytes(share, ("tested",), together=True),
    "saving": _of_bytes(saving),
    "maximum": _of_bytes(maximum, together=True),
    "not_worse": Kind(
        judge=not_worse,
        roles=(*PAIR, "control"),
        limits=("margin", "relative"),
        measured="metric",
        bears="digits",
        published=("value", *PAIR),
    ),
    "better": Kind(
        judge=better,
        roles=PAIR,
        limits=("tolerance", "relative"),
        measured="metric",
        bears="digits",
        published=("value", "low", "high"),
    ),
    "identical": Kind(judge=identical, roles=PAIR, limits=(), measured="metric", bears="digits"),
    "throughput": Kind(judge=partial(lost_time, name="steps_per_second"), measured="speed", **OF_TIMES),
    "duration": Kind(judge=partial(lost_time, name="wall_seconds"), measured="metric", **OF_TIMES),
    "overlap": Kind(judge=overlap, roles=("tested",), limits=("at_most", "ratio"), measured="observation"),
}
