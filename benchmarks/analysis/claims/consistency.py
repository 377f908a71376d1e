"""Claims that need no run: does the paper agree with itself and its code, by arithmetic on its own numbers?"""

from collections.abc import Callable
from dataclasses import replace

from benchmarks.analysis.claims.claim import Book, Claim, Counts, Verdict, number, shown
from benchmarks.analysis.claims.sound import load_planned
from benchmarks.analysis.published import Published


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
