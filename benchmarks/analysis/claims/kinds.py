"""The kinds of tests, with those of arithmetic, bytes, times and distributions; and the claims that name them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis.claims.claim import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Book,
    Claim,
    Counts,
    Margin,
    Published,
    Scope,
    Undecided,
    Verdict,
    allowed,
    below,
    beside,
    bounds,
    load_published,
    number,
    shown,
    unless_doubted,
    written,
)
from benchmarks.analysis.claims.evidence import MEMORY, Case, Comparison, check_there, common_seeds, is_full, on_cpu
from benchmarks.analysis.claims.metric_claims import BOTH, CONTROL, better, identical, margin_of, not_worse
from benchmarks.analysis.claims.one_gpu import MEASURES
from benchmarks.analysis.claims.sound import load_planned, unplanned
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.statistics import interval, p_beyond
from benchmarks.analysis.tables.run_tables import DISTANCES, DISTRIBUTIONS
from benchmarks.core.checks import known_keys
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.paths import ROOT
from benchmarks.core.record import STATE_FIELDS, CellResult
from resireduce.errors import ConfigError, choose

# --- Claims that need no run: does the paper agree with itself and its code, by arithmetic on its own numbers? ---


def largest(book: Book, claim: Claim) -> Verdict:
    """Compare a stated maximum with the largest of the values stated one by one."""
    values = _values(book, claim)
    most = max(values, key=lambda one: values[one])
    others = ", ".join(f"{value:g}" for value in values.values())
    return _verdict(claim, values[most], f"max({others}) = {values[most]:g}, {most}")


def relative_change(book: Book, claim: Claim) -> Verdict:
    """Compare a stated change in per cent with the relative change of two stated values; also show the absolute one."""
    before, after = _values(book, claim).values()
    value = 100 * (after - before) / before
    text = f"relative: 100 x ({after:g} - {before:g}) / {before:g} = {number(value)} %"
    return _verdict(claim, value, f"{text}; absolute: {number(after - before)} points")


def relative_losses(book: Book, claim: Claim) -> Verdict:
    """Compare a stated range with the relative losses of the pairs; also show their absolute losses."""
    pairs = [(book.published[before], book.published[after]) for before, after in claim.paper.limits["of"]]
    absolute = [
        after.value - before.value if before.unit == "ppl" else before.value - after.value for before, after in pairs
    ]
    relative = [100 * loss / before.value for loss, (before, _) in zip(absolute, pairs, strict=True)]
    low, high, least, most = claim.published["low"], claim.published["high"], min(relative), max(relative)
    in_percent, in_points = (", ".join(map(number, those)) for those in (relative, absolute))
    text = f"relative: {in_percent} %, so {number(least)} to {number(most)}; stated {low.value:g} to {high.value:g}; "
    text += f"absolute: {in_points}"
    return replace(_verdict(claim, most, text, _same(least, low) and _same(most, high)), reason=text)


def saving_by_counts(book: Book, claim: Claim) -> Verdict:
    """Compare a stated saving with that of the released grouping, computed from the model's states."""
    counts, stated = _counts(book, claim), claim.published["value"].value
    value, needed = 100 * counts.saved / counts.states, counts.saved / (stated / 100) / counts.parameters
    text = f"{counts.saved:,} of {_states(counts)} elements = {number(value)} %; {stated:g} % would need a state of "
    text += f"{number(needed)} T, here it is {number(counts.states / counts.parameters)} T (T = {counts.parameters:,})"
    return _verdict(claim, value, text)


def share_by_counts(book: Book, claim: Claim) -> Verdict:
    """Compare a stated share of residuals with the share computed from the model's states."""
    counts = _counts(book, claim)
    value = 100 * counts.residuals / counts.states
    return _verdict(claim, value, f"{counts.residuals:,} of {_states(counts)} elements = {number(value)} %")


def size_by_counts(book: Book, claim: Claim) -> Verdict:
    """Compare a stated model size with the computed one, in float32 and in the unit of the stated value."""
    counts = _counts(book, claim)
    sizes = {unit: 4 * counts.parameters / size for unit, size in SIZES.items()}
    text = " = ".join(f"{number(size)} {unit}" for unit, size in sizes.items())
    return _verdict(claim, sizes[str(claim.published["value"].unit)], f"4 x {counts.parameters:,} bytes = {text}")


def best(book: Book, claim: Claim) -> Verdict:
    """Compare a metric stated to be the best with the best of the others; for perplexity, less is better."""
    stated, values = claim.published["value"], _values(book, claim)
    name = (min if stated.unit == "ppl" else max)(values, key=lambda one: values[one])
    better = values[name] < stated.value if stated.unit == "ppl" else values[name] > stated.value
    text = f"the best of the others is {values[name]:g}, {name}"
    return replace(_verdict(claim, values[name], text, not better), tolerance="none of the others better")


def same(book: Book, claim: Claim) -> Verdict:
    """Compare two stated values that should be the same."""
    other = claim.published["against"]
    return _verdict(claim, other.value, f"{other.value:g} {other.unit} with {other.world_size} GPUs")


def w_over_2d(book: Book, claim: Claim) -> Verdict:
    """Compare, on the plan of a model, the savings of sharing between layers and of reduction within layers."""
    planned = load_planned()[claim.paper.models[0]]
    held, total = planned.residuals_bytes, planned.total_bytes
    w, two = (100 * (held["baseline"] - held[scheme]) / total for scheme in ("w", "2d"))
    text = f"w saves {number(w)} % of {total:,} bytes, 2d {number(two)} %"
    return Verdict(status=shown(w > two), reason=text, value=w - two, unit="points", tolerance="w saves more")


def _values(book: Book, claim: Claim) -> dict[str, float]:
    return {one: book.published[one].value for one in claim.paper.limits["of"]}


def _counts(book: Book, claim: Claim) -> Counts:
    return book.counts[claim.paper.models[0]]


def _states(counts: Counts) -> str:
    return f"({2 + counts.copies} x {counts.parameters:,} + {counts.residuals:,})"


def _verdict(claim: Claim, value: float, text: str, agrees: bool | None = None) -> Verdict:
    """Compare a value with the stated one, unless it is known already whether they agree."""
    stated = claim.published.get("value") or claim.published["high"]
    tolerance = float(claim.paper.limits.get("tolerance", 0))
    if agrees is None:
        agrees = abs(value - stated.value) <= tolerance if tolerance else _same(value, stated)
    return Verdict(
        status=shown(agrees),
        reason=f"{text}; stated {stated.value:g} {stated.unit}",
        value=value,
        published=stated.value,
        unit=stated.unit,
        tolerance=f"± {tolerance:g}" if tolerance else "equal to as many digits as are stated",
    )


def _same(value: float, stated: Published) -> bool:
    """Return whether a value rounds to the stated one; half way counts, because inputs are rounded."""
    return abs(value - stated.value) <= stated.rounding + 1e-9


SIZES = {"MiB": 2**20, "MB": 10**6, "GB": 10**9}
ARITHMETIC: tuple[Callable[[Book, Claim], Verdict], ...] = (largest, relative_change, relative_losses, best, same)
ARITHMETIC += (saving_by_counts, share_by_counts, size_by_counts, w_over_2d)
"""The kinds of arithmetic, each under its own name."""


# --- Claims about bytes: the share of residuals, savings, and the largest saving over several models ---
#
# Model states are arithmetic, so any number of ranks, steps and samples will do, and all must agree. Parameters,
# gradients and optimizer states must match the plan, so that a saving comes only from residuals and from streamed
# gradients. Values that no cell was meant to measure are filled in where they follow, and the reason says so.


UNIT = "%"


@dataclass(frozen=True)
class States:
    """Bytes of one role, the records they come from, and which part was not measured."""

    total: int
    residuals: int
    records: tuple[CellResult, ...]
    assumed: str = ""


def share(case: Case) -> Verdict:
    """Judge the share of residuals in the model states: each model's must match the published one within tolerance."""
    known = {_label(case, one): states(case, one, "tested") for one in case.comparisons}
    shares = {label: 100 * one.residuals / one.total for label, one in known.items()}
    return _judge(case, shares, sum(shares.values()) / len(shares), known)


def saving(case: Case) -> Verdict:
    """Judge the saving of model states against the other role."""
    values, known = _savings(case)
    return _judge(case, values, next(iter(values.values())), known)


def maximum(case: Case) -> Verdict:
    """Judge the largest saving over several models: "up to" is a value that one reaches and none exceeds.

    A model reaches a value only if all its groups do.
    """
    values, known = _savings(case)
    pairs = ((one.model, _label(case, one)) for one in case.comparisons)
    by_model = grouped((model, (values[label], label)) for model, label in pairs).values()
    reached, most = max(map(min, by_model)), max(map(max, by_model))
    return _judge(case, {label: value for value, label in (reached, most)}, most[0], known)


def _savings(case: Case) -> tuple[dict[str, float], dict[str, States]]:
    """Return the saving of each model and group in per cent, and the states it comes from."""
    values, known = {}, {}
    for one in case.comparisons:
        tested, against = (states(case, one, role) for role in ("tested", "against"))
        values[_label(case, one)] = 100 * (1 - tested.total / against.total)
        assumed = "; ".join(dict.fromkeys(text for text in (tested.assumed, against.assumed) if text))
        known[_label(case, one)] = replace(tested, records=(*tested.records, *against.records), assumed=assumed)
    return values, known


def _label(case: Case, one: Comparison) -> str:
    """Return the model, with the group if it has several."""
    alone = [other.model for other in case.comparisons].count(one.model) == 1
    return one.model if alone else f"{one.model} ({one.group})"


def states(case: Case, comparison: Comparison, role: str) -> States:
    """Return the bytes of a role: measured, with kept gradients added to a streamed stand-in, or from the plan.

    A cell that failed, is broken or was not run yet is not replaced: that raises Undecided, with the reason.
    """
    criteria, planned = case.scope.roles[role], load_planned().get(comparison.model)
    if role == "against" and role not in comparison.results and planned and is_full(criteria):
        residuals = planned.residuals_bytes["baseline"]
        return States(planned.total_bytes, residuals, (), f"full residuals by arithmetic, {residuals:,} bytes")
    check_there(comparison, role)
    measured = _equal(tuple(comparison.results[role].values()), exact=role == "against")
    first = measured.records[0]
    if first.cell.gradients == criteria.get("gradients", "kept"):
        return measured
    text = "kept gradients by arithmetic, as large as the parameters"
    return replace(measured, total=measured.total + int(first.parameters_bytes or 0), assumed=text)


def _equal(records: tuple[CellResult, ...], exact: bool) -> States:
    """Return the states that all seeds share, checked against the plan; if `exact`, residuals may not exceed it."""
    for name in (*STATE_FIELDS, "total_bytes"):
        values = sorted({int(getattr(record, name) or 0) for record in records})
        if len(values) > 1:
            text = f"{name} differs between seeds: {values[0]:,} and {values[-1]:,}; model states do not depend on them"
            raise Undecided(text, results=records)
    if problem := unplanned(records[0].cell, vars(records[0]), exact=exact):
        raise Undecided(problem, results=records)
    return States(int(records[0].total_bytes or 0), int(records[0].residuals_bytes or 0), records)


def _judge(case: Case, values: Mapping[str, float], value: float, known: Mapping[str, States]) -> Verdict:
    """Compare values in per cent with the published one or with the limits of the claim."""
    published = case.published()
    low, high, says = allowed(published, case.scope.limits)
    text = ", ".join(f"{model} {number(one)} %" for model, one in values.items())
    text += f", {says}" if published is None else f"; {beside(value, published, '%')}"
    assumed = "; ".join(dict.fromkeys(state.assumed for state in known.values() if state.assumed))
    records = tuple(record for state in known.values() for record in state.records)
    verdict = Verdict(
        status=shown(all(low <= one <= high for one in values.values())),
        reason=text + (f" ({assumed})" if assumed else ""),
        value=value,
        unit=UNIT,
        tolerance=says,
        seeds=min(len({one.cell.seed for one in state.records}) for state in known.values()),
        results=records,
    )
    # Residuals larger than planned do not show it: they make a larger saving the published one.
    return unless_doubted(verdict, (unplanned(one.cell, vars(one), exact=True) for one in records))


# --- Claims about time: the loss of throughput, and the time of a whole training, against the other side ---

BLOCKS = 10


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
    margin, within = margin_of(case.book, case.scope.limits), bounds(loss)
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
    """The entry of `benchmarks.analysis.claims.evidence.FREE`: which fields of a cell do not matter."""
    bears: str = "nothing"
    """The entry of BEARING in `claims_command`: which differences of origin leave the verdict open."""
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
    most, least = float(case.scope.limits["at_most"]), float(case.scope.limits["ratio"])
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
    """Return the divergence within groups, and the ratio between / within. Raises for what cannot be a distance."""
    seen = record.observations[DISTRIBUTIONS]
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


# --- Read results/paper/claims.yaml. An error takes one line: the claim, and what is wrong with it ---

CLAIMS_FILE = ROOT / "results/paper/claims.yaml"
FIELDS = ("id", "source", "statement", "each", "models", "published", "cells", "test", "command", "small")
SMALL_FIELDS = ("of", "statement", "cells", "test", "command")
STATED = ("value", "low", "high", "tested", "against")
"""Roles of published numbers."""
ITSELF = "python -m benchmarks claims"
"""The command of claims that name none."""


@lru_cache
def load_claims(path: Path = CLAIMS_FILE) -> Book:
    """Return all claims in file order. Raises ConfigError for an invalid claim."""
    values, published = read_yaml(path), load_published()
    pairs = {name: (published[one["against"]], published[one["tested"]]) for name, one in values["margins"].items()}
    book = Book(
        claims=(),
        margins={name: Margin(*pairs[name], one.get("percent", False)) for name, one in values["margins"].items()},
        noise=values["noise"],
        counts={model: Counts(**one) for model, one in values["counts"].items()},
        stand_ins=values["stand_ins"],
        published=published,
    )
    claims: dict[str, Claim] = {}
    for entry in values["claims"]:
        try:
            known_keys("entry", entry, FIELDS)
            named = {f"{entry['id']}-{model}": ((model,), stated) for model, stated in entry.get("each", {}).items()}
            alone = {entry["id"]: (tuple(entry.get("models", ())), entry.get("published"))}
            for name, (models, stated) in (named or alone).items():
                if name in claims:
                    raise ConfigError(f"id: {name!r} is there twice; give each claim an id of its own")
                claims[name] = _claim(book, entry, name, models, stated)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            what = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            raise ConfigError(f"{path}: claim {str(entry)[:40]}: {what}{error}") from None
    return replace(book, claims=tuple(claims.values()))


def _claim(book: Book, entry: Mapping[str, Any], name: str, models: tuple[str, ...], stated: Any) -> Claim:
    """Return the claim of an entry about these models; `stated` is the id of a number, or several by role."""
    kind = choose("test: kind", entry["test"]["kind"], KINDS)
    given = stated if isinstance(stated, dict) else {"value": stated} if stated else {}
    numbers = {role: book.published[one] for role, one in given.items() if role in STATED}
    words = {
        "published": " to ".join(f"{numbers[role].value:g}" for role in ("value", "low", "high") if role in numbers)
    }
    words |= {"title": book.counts[models[0]].title} if models and models[0] in book.counts else {}
    # What is stated for one model, and is no number, is a limit.
    limits = {role: one for role, one in given.items() if role not in numbers}
    paper = _scope({**entry, "test": entry["test"] | limits}, models, words)
    small, changed = None, known_keys("small", entry.get("small") or {}, SMALL_FIELDS)
    if changed and set(models) & set(changed.get("of", models)):
        other = _roles(changed.get("cells"))
        roles = {role: {**_anywhere(criteria), **other.get(role, {})} for role, criteria in paper.roles.items()}
        test = {limit: value for limit, value in entry["test"].items() if limit != "why"} | (changed.get("test") or {})
        there = tuple(dict.fromkeys(book.stand_ins[one] for one in models))
        small = _scope({**entry, **changed, "cells": roles, "test": test}, there, words)
    return Claim(id=name, source=entry["source"], kind=kind, published=numbers, paper=paper, small=small)


def _scope(entry: Mapping[str, Any], models: tuple[str, ...], words: Mapping[str, str]) -> Scope:
    """Return a scope, with {model}, {published}, {title} and {limits} filled into its statement."""
    test, roles = entry["test"], _roles(entry.get("cells"))
    kind = KINDS[test["kind"]]
    known_keys("test", test, ("kind", "why", *kind.limits))
    if set(roles) != set(kind.roles):
        raise ConfigError(f"cells: {', '.join(roles)}; kind {test['kind']} has {', '.join(kind.roles)}")
    limits = {name: value for name, value in test.items() if name != "kind"}
    statement = entry["statement"].format(**{"model": ", ".join(models), **limits, **words})
    command = entry.get("command", ITSELF)
    return Scope(statement=statement, models=models, roles=roles, limits=limits, command=command)


def _roles(given: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return criteria by role; those under `all` apply to every role."""
    given = given or {}
    return {role: {**(given.get("all") or {}), **one} for role, one in given.items() if role != "all"}


def _anywhere(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Return criteria for any number of ranks."""
    return {name: value for name, value in criteria.items() if name != "world_size"}
