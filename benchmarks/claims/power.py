"""With how many seeds a claim of accuracy can be shown: the power of its test, paired by seed.

Of n seeds whose differences have standard deviation s, the test passes if the upper end of their 95 % interval is below
the margin m. For a true difference of zero that has the probability E[Phi(m sqrt(n) / s - t C)], C the root of a
chi-squared variable with n - 1 degrees of freedom over these, t Student's quantile.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

from benchmarks.claims.claim import Book, Claim, Scope
from benchmarks.claims.margins import margin_of
from benchmarks.files import load_json
from benchmarks.report.student import CONFIDENCE, t_quantile

POWER = 0.8
MOST = 200
"""Seeds that are reckoned with; more are as good as never."""
SLICES = 300
"""Slices into which the distribution of C is cut to find its mean."""
REFERENCE = Path(__file__).parents[2] / "results/reference/mini.json"
"""Differences of `w+2d` and full residuals over seeds, of the small models."""


def power(seeds: int, room: float) -> float:
    """Return the probability that so many seeds show a true zero at a margin of `room` standard deviations."""
    degrees = seeds - 1
    t, shift = t_quantile((1 + CONFIDENCE) / 2, degrees), room * math.sqrt(seeds)
    constant = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    total, width = 0.0, 4 / SLICES
    for slice_ in range(SLICES):
        c = (slice_ + 0.5) * width
        density = math.exp(constant + (degrees - 1) * math.log(c) - degrees * c * c / 2)
        total += density * NormalDist().cdf(shift - t * c) * width
    return min(1.0, total)


@lru_cache(maxsize=1000)
def seeds_needed(margin: float, spread: float) -> int | None:
    """Return with how many seeds a true zero is shown with a probability of 80 %; None if more than 200 are needed."""
    if spread <= 0 or margin <= 0:
        return None
    return next((seeds for seeds in range(2, MOST + 1) if power(seeds, margin / spread) >= POWER), None)


Metrics = tuple[str, list[float], list[float]]
"""A metric's name, and its values with `w+2d` and with full residuals, seed by seed."""


@lru_cache
def reference_metrics() -> dict[str, Metrics]:
    """Return the committed metrics by small model."""
    return metrics_of(load_json(REFERENCE)["rows"])


def metrics_of(those: Sequence[Mapping[str, Any]]) -> dict[str, Metrics]:
    """Return the metrics by model, from rows of `python -m benchmarks intervals`."""
    rows = {(row["model"], row["scheme"]): row for row in those if row["gradients"] == "kept"}
    found = {}
    for model in dict.fromkeys(model for model, _ in rows):
        tested, against = rows[model, "w+2d"], rows[model, "baseline"]
        seeds = [seed for seed in against["metrics"] if seed in tested["metrics"]]
        values = [[float(row["metrics"][seed]) for seed in seeds] for row in (tested, against)]
        found[model] = (str(against["metric_name"]), values[0], values[1])
    return found


def seeds_by_reference(book: Book, claim: Claim, scope: Scope) -> int | None:
    """Return the seeds that a claim of accuracy needs, by the spread of the small models that stand in for its own."""
    stated = claim.published.get("against") if scope is claim.paper else None
    models = [book.stand_ins.get(model, model) for model in scope.models]
    needed = [seeds_of(book, model, scope.limits, stated.value if stated else None) for model in models]
    return None if None in needed else max((one for one in needed if one is not None), default=None)


def seeds_of(book: Book, small: str, limits: Mapping[str, Any], level: float | None = None) -> int | None:
    """Return the seeds that a test with these limits needs, by the spread of a small model.

    level: of the metric that a relative loss is of, where that is another model's.
    """
    if small not in reference_metrics():
        return None
    return seeds_needed(*margin_and_spread(book, reference_metrics()[small], limits, level))


def margin_and_spread(
    book: Book, metrics: Metrics, limits: Mapping[str, Any], level: float | None = None
) -> tuple[float, float]:
    """Return the margin of a test with these limits, and the standard deviation of a small model's differences.

    level: as in `seeds_of`.
    """
    name, tested, against = metrics
    differences = [one - other for one, other in zip(tested, against, strict=True)]
    relative = bool(limits.get("relative")) or name == "perplexity"
    level = mean(against) if level is None or name == "perplexity" else level
    if relative:
        differences = [100 * one / level for one in differences]
    margin = margin_of(book, {**limits, "relative": relative}, name, level)
    return margin.value, stdev(differences)
