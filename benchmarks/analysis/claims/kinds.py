"""The kinds of tests, by name, with those of times and of distributions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Undecided,
    Verdict,
    below,
    bounds,
    number,
    written,
)
from benchmarks.analysis.claims.consistency import ARITHMETIC
from benchmarks.analysis.claims.memory_claims import maximum, saving, share
from benchmarks.analysis.claims.metric_claims import BOTH, CONTROL, better, identical, margin_of, not_worse
from benchmarks.analysis.claims.one_gpu import MEASURES
from benchmarks.analysis.claims.select import MEMORY, Case, check_there, common_seeds, on_cpu
from benchmarks.analysis.statistics import interval, p_beyond
from benchmarks.analysis.tables.distribution_table import KINDS as DISTANCES
from benchmarks.analysis.tables.distribution_table import NAME
from benchmarks.core.record import CellResult

# --- Claims about time: the loss of throughput, and the time of a whole training, against the other side ---


BLOCKS = 10
UNIT = "%"


def lost_time(case: Case, name: str) -> Verdict:
    """Judge the loss of steps_per_second or the rise of wall_seconds; the whole interval must be below the margin."""
    found = case.only
    seeds, records = common_seeds(found, *BOTH), found.records(*BOTH)
    if resumed := next((one for one in records if one.provenance.get("resumed_at_steps")), None):
        at = f"{resumed.cell.name} was stopped, and went on at step {resumed.provenance['resumed_at_steps'][0]}"
        raise Undecided(f"{at}: what it took is not that of one run", seeds=len(seeds), results=records)
    losses, how = _losses([tuple(found.results[role][seed] for role in BOTH) for seed in seeds], name)
    loss = interval(losses)
    assert loss is not None
    margin, within = margin_of(case.book, case.limits), bounds(loss)
    word = "loss of throughput" if name == "steps_per_second" else "longer by"
    reason = f"{word} {written(loss.mean, within, UNIT)}, margin {number(margin.value)}; {how}"
    return Verdict(
        status=below(within, margin.value) if within and loss.half_width else INCONCLUSIVE,
        reason=reason if within is None or loss.half_width else f"{reason}, which have no spread to judge by",
        value=loss.mean,
        interval=within,
        unit=UNIT,
        tolerance=f"95 % interval of the loss below {margin.value:g} % ({margin.reason})",
        seeds=len(seeds),
        p_value=p_beyond(loss, margin.value),
        results=records,
    )


def _losses(pairs: Sequence[tuple[CellResult, ...]], name: str) -> tuple[list[float], str]:
    """Return losses in per cent, longer times or lower speeds, of each seed, or of each block of steps of one run."""
    if len(pairs) == 1 and name == "steps_per_second" and not any(map(on_cpu, pairs[0])):
        size = min(len(one.step_seconds) for one in pairs[0]) // BLOCKS
        blocks = [[mean(one.step_seconds[size * i :][:size]) for i in range(BLOCKS)] for one in pairs[0] if size > 1]
        if blocks:
            losses = [100 * (1 - other / mine) for mine, other in zip(*blocks, strict=True)]
            return losses, f"one run each, over {BLOCKS} blocks of steps"
    ratios = [float(getattr(one, name) or 0) / float(getattr(other, name) or math.inf) for one, other in pairs]
    losses = [100 * (ratio - 1 if name == "wall_seconds" else 1 - ratio) for ratio in ratios]
    return losses, f"over {len(pairs)} seeds" if len(pairs) > 1 else "n = 1: no interval"


# --- The kinds of tests, by name; adding one takes one function and one line here ---


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a test compares and what decides it."""

    judge: Callable[..., Verdict]
    """Takes a Case; if it is `of` numbers, the book and the claim, and if of GPUs, the claim and one device."""
    of: str = "cells"
    roles: tuple[str, ...] = ()
    """Roles whose cells a claim must describe."""
    limits: tuple[str, ...] = ()
    """Names allowed in a claim's `test`, besides `kind` and `why`."""
    measured: str = "metric"
    """The entry of `benchmarks.analysis.claims.select.FREE`: which fields of a cell do not matter."""
    bears: str = "nothing"
    """The entry of `benchmarks.analysis.claims.ledger.BEARING`: which differences of origin leave the verdict open."""
    together: bool = False
    """Whether all groups and models form one comparison; else each is judged alone, and all must show the claim."""


# --- Claims about distributions: residuals overlap within a group, and more than between groups ---


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
        unit="bits",
        tolerance=f"divergence within groups at most {most:g} bits, between groups {least:g} times as far or more",
        seeds=len(records),
        results=records,
    )


def _distances(record: CellResult) -> tuple[float, float]:
    """Return the divergence within groups, and the ratio between / within.

    Raises LookupError and others if a distance is missing, or is no number from 0, a divergence up to 1 bit.
    """
    seen = record.observations[NAME]
    for where, kind in product(("within", "between"), DISTANCES):
        if not 0 <= seen[where][kind] < (1 + ROUNDING if kind == DIVERGENCE else math.inf):
            raise ValueError(f"{kind}: {seen[where][kind]}")
    return float(seen["within"][DIVERGENCE]), min(seen["between"][kind] / seen["within"][kind] for kind in DISTANCES)


# --- The table of all kinds ---


OF_BYTES: dict[str, Any] = {"roles": BOTH, "limits": ("tolerance", "at_least", "at_most"), "measured": MEMORY}
OF_TIMES: dict[str, Any] = {"roles": BOTH, "limits": ("margin", "noise"), "bears": "times"}
OF_NUMBERS: dict[str, Any] = {"of": "numbers", "limits": ("of", "tolerance")}
ON_GPUS: dict[str, Any] = {"of": "GPUs", "limits": ("tested", "rung", "tolerance", "at_least", "within")}
KINDS: dict[str, Kind] = {
    "share": Kind(judge=share, together=True, **OF_BYTES | {"roles": ("tested",)}),
    "saving": Kind(judge=saving, **OF_BYTES),
    "maximum": Kind(judge=maximum, together=True, **OF_BYTES),
    "not_worse": Kind(judge=not_worse, roles=(*BOTH, CONTROL), limits=("margin", "relative"), bears="digits"),
    "better": Kind(judge=better, roles=BOTH, limits=("tolerance", "relative"), bears="digits"),
    "identical": Kind(judge=identical, roles=BOTH, bears="digits"),
    "throughput": Kind(judge=partial(lost_time, name="steps_per_second"), measured="speed", **OF_TIMES),
    "duration": Kind(judge=partial(lost_time, name="wall_seconds"), **OF_TIMES),
    "overlap": Kind(judge=overlap, roles=("tested",), limits=("at_most", "ratio"), measured="observation"),
    **{make.__name__: Kind(judge=make, **OF_NUMBERS) for make in ARITHMETIC},
    **{make.__name__: Kind(judge=make, **ON_GPUS) for make in MEASURES},
}
