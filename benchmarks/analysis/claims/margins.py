"""How much worse a metric may be and still count as kept, and how many seeds can show it, paired by seed.

A margin is derived only here. It is a loss that the paper states, or the largest one that it calls kept, plus what the
rounding of the printed numbers can hide, plus the effect of another seed, as the paper prints one run of each. The
ledger shows the sum. With n seeds whose differences have standard deviation s, the test passes if the upper end of
their 95 % interval is below the margin m. `benchmarks.analysis.statistics.power` has the probability of passing at a
true difference of zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, stdev
from typing import Any

from benchmarks.analysis.claims.claim import Book, Claim, Margin, Scope
from benchmarks.analysis.published import Published
from benchmarks.analysis.statistics import power
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError

POWER = 0.8
MOST = 200
"""Most seeds considered; more are as good as never."""
REFERENCE = ROOT / "results/reference/mini.json"
"""Source of the small models' differences between `w+2d` and full residuals, over seeds."""


@lru_cache(maxsize=1000)
def seeds_needed(margin: float, spread: float) -> int | None:
    """Return how many seeds show a true zero with a probability of 80 %; None if more than 200 are needed."""
    if spread <= 0 or margin <= 0:
        return None
    return next((seeds for seeds in range(2, MOST + 1) if power(seeds, margin / spread) >= POWER), None)


Metrics = tuple[str, list[float], list[float]]
"""A metric's name, and its values with `w+2d` and with full residuals, in the same order of seeds."""


@lru_cache
def reference_metrics() -> dict[str, Metrics]:
    """Return the committed metrics of each small model. Raises ConfigError, one line, if they are damaged."""
    try:
        return metrics_of(load_json(REFERENCE)["rows"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        cure = "restore it with git checkout results/reference"
        raise ConfigError(f"reference: {REFERENCE} cannot be read ({error!r}); {cure}") from None


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
    """Return the seeds that an accuracy claim needs, by the spread of the small models that stand in for its models."""
    stated = claim.published.get("against") if scope is claim.paper else None
    models = [book.stand_ins.get(model, model) for model in scope.models]
    needed = [seeds_of(book, model, scope.limits, stated.value if stated else None) for model in models]
    return None if None in needed else max((one for one in needed if one is not None), default=None)


def seeds_of(book: Book, small: str, limits: Mapping[str, Any], level: float | None = None) -> int | None:
    """Return the seeds that a test with these limits needs, by the spread of a small model.

    level: the value that a relative loss refers to, if it is another model's metric.
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


@dataclass(frozen=True)
class Derived:
    """A margin, in the unit of the loss it is compared with, and the sum it comes from."""

    value: float
    reason: str


def margin_of(book: Book, limits: Mapping[str, Any], metric: str = "", level: float = 0.0) -> Derived:
    """Return the margin of a claim: its own number, that of a stated loss, or the usual one of the metric.

    metric, level: for the usual one, the metric's name and its mean on the side compared with.
    """
    given, noise = limits.get("margin"), float(limits.get("noise", book.noise))
    if given is None:
        return _usual(book.margins[metric], noise, level, bool(limits.get("relative")))
    if not isinstance(given, str):
        return Derived(float(given), str(limits.get("why", "")))
    one = book.published[given]
    return Derived(one.value + one.rounding + noise, _sum(f"{one.value:g} {one.unit} stated", one.rounding, noise))


def loss_between(against: Published, tested: Published, percent: bool) -> tuple[float, float]:
    """Return the loss from `against` to `tested` as printed, and the largest one possible before rounding."""
    sign = 1 if against.unit == "ppl" else -1
    printed = sign * (tested.value - against.value)
    base = against.value - against.rounding if sign > 0 else against.value + against.rounding
    most = printed + tested.rounding + against.rounding
    return (100 * printed / against.value, 100 * most / base) if percent else (printed, most)


def _usual(margin: Margin, noise: float, level: float, relative: bool) -> Derived:
    printed, most = loss_between(margin.against, margin.tested, margin.percent)
    unit = "%" if margin.percent else "points"
    pair = f"{margin.against.value:g} to {margin.tested.value:g}, {margin.tested.id}"
    text = _sum(f"{printed:.2f} {unit} called kept ({pair})", most - printed, noise)
    value = most + noise
    if margin.percent and not relative:
        return Derived(value * level / 100, f"{text}, of {level:.2f}")
    return Derived(100 * value / level if relative and not margin.percent else value, text)


def _sum(stated: str, rounding: float, noise: float) -> str:
    return f"{stated} + {rounding:.2g} rounding + {noise:g} another seed or machine"
