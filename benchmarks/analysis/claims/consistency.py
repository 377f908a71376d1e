"""Claims that need no run: does the paper agree with itself and its code, by arithmetic on its own numbers?"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.analysis.claims.claim import Book, Counts, Scope, Verdict, number, shown
from benchmarks.analysis.claims.sound import load_planned
from benchmarks.analysis.published import Published


def consistency(book: Book, scope: Scope) -> Verdict:
    """Evaluate the arithmetic that the claim names; reproduced if the stated value follows from it."""
    make, _ = ARITHMETIC[scope.limits["arithmetic"]]
    return make(book, scope.limits)


def largest(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a stated maximum with the largest of the values stated one by one."""
    values = {one: book.published[one].value for one in limits["of"]}
    most = max(values, key=lambda one: values[one])
    others = ", ".join(f"{value:g}" for value in values.values())
    return _verdict(book, limits, values[most], f"max({others}) = {values[most]:g}, {most}")


def relative_change(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a stated change in per cent with the relative change of two stated values; also show the absolute one."""
    before, after = (book.published[one].value for one in limits["of"])
    value = 100 * (after - before) / before
    text = f"relative: 100 x ({after:g} - {before:g}) / {before:g} = {number(value)} %"
    return _verdict(book, limits, value, f"{text}; absolute: {number(after - before)} points")


def relative_losses(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a stated range with the relative losses of the pairs; also show their absolute losses."""
    relative, absolute = [], []
    for before_id, after_id in limits["of"]:
        before, after = book.published[before_id], book.published[after_id]
        loss = after.value - before.value if before.unit == "ppl" else before.value - after.value
        relative.append(100 * loss / before.value)
        absolute.append(loss)
    low, high = (book.published[limits[end]] for end in ("low", "high"))
    least, most = min(relative), max(relative)
    in_percent, in_points = (", ".join(map(number, those)) for those in (relative, absolute))
    text = f"relative: {in_percent} %, so {number(least)} to {number(most)}; stated {low.value:g} to {high.value:g}; "
    text += f"absolute: {in_points}"
    agrees = _same(least, low) and _same(most, high)
    return replace(_verdict(book, {"stated": limits["high"]}, most, text, agrees), reason=text)


def saving_by_counts(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a stated saving with that of the released grouping, computed from the model's states."""
    counts = book.counts[limits["model"]]
    value = 100 * counts.saved / counts.states
    stated = book.published[limits["stated"]].value
    needed = counts.saved / (stated / 100) / counts.parameters
    text = f"{counts.saved:,} of {_states(counts)} elements = {number(value)} %; {stated:g} % would need a state of "
    text += f"{number(needed)} T, here it is {number(counts.states / counts.parameters)} T (T = {counts.parameters:,})"
    return _verdict(book, limits, value, text)


def share_by_counts(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a stated share of residuals with the share computed from the model's states."""
    counts = book.counts[limits["model"]]
    value = 100 * counts.residuals / counts.states
    return _verdict(book, limits, value, f"{counts.residuals:,} of {_states(counts)} elements = {number(value)} %")


def size_by_counts(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a stated model size with the computed one, in float32 and in the unit of the stated value."""
    counts = book.counts[limits["model"]]
    sizes = {unit: 4 * counts.parameters / size for unit, size in SIZES.items()}
    text = " = ".join(f"{number(size)} {unit}" for unit, size in sizes.items())
    unit = str(book.published[limits["stated"]].unit)
    return _verdict(book, limits, sizes[unit], f"4 x {counts.parameters:,} bytes = {text}")


def best(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare a metric stated to be the best with the best of the others; for perplexity, less is better."""
    stated, values = book.published[limits["stated"]], {one: book.published[one].value for one in limits["of"]}
    name = (min if stated.unit == "ppl" else max)(values, key=lambda one: values[one])
    better = values[name] < stated.value if stated.unit == "ppl" else values[name] > stated.value
    text = f"the best of the others is {values[name]:g}, {name}"
    return replace(_verdict(book, limits, values[name], text, not better), tolerance="none of the others better")


def same(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare two stated values that should be the same."""
    other = book.published[limits["of"]]
    return _verdict(book, limits, other.value, f"{other.value:g} {other.unit} with {other.world_size} GPUs")


def w_over_2d(book: Book, limits: Mapping[str, Any]) -> Verdict:
    """Compare, on the plan of a model, the savings of sharing between layers and of reduction within layers."""
    planned = load_planned()[limits["model"]]
    held, total = planned.residuals_bytes, planned.total_bytes
    w, two = (100 * (held["baseline"] - held[scheme]) / total for scheme in ("w", "2d"))
    text = f"w saves {number(w)} % of {total:,} bytes, 2d {number(two)} %"
    return Verdict(status=shown(w > two), reason=text, value=w - two, unit="points", tolerance="w saves more")


def _verdict(book: Book, limits: Mapping[str, Any], value: float, text: str, agrees: bool | None = None) -> Verdict:
    """Compare a value with the stated one, unless it is known already whether they agree."""
    stated, tolerance = book.published[limits["stated"]], float(limits.get("tolerance", 0))
    if agrees is None:
        agrees = _same(value, stated) if not tolerance else abs(value - stated.value) <= tolerance
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


def _states(counts: Counts) -> str:
    return f"({2 + counts.copies} x {counts.parameters:,} + {counts.residuals:,})"


SIZES = {"MiB": 2**20, "MB": 10**6, "GB": 10**9}
ARITHMETIC: dict[str, tuple[Callable[[Book, Mapping[str, Any]], Verdict], tuple[str, ...]]] = {
    "largest": (largest, ("stated", "of")),
    "relative_change": (relative_change, ("stated", "of")),
    "relative_losses": (relative_losses, ("low", "high", "of")),
    "saving_by_counts": (saving_by_counts, ("stated", "model")),
    "share_by_counts": (share_by_counts, ("stated", "model")),
    "size_by_counts": (size_by_counts, ("stated", "model")),
    "best": (best, ("stated", "of")),
    "same": (same, ("stated", "of")),
    "w_over_2d": (w_over_2d, ("model",)),
}
"""The names that `arithmetic` may have in a consistency claim, each with the other names it needs in `test`."""
