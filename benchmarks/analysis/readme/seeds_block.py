"""Words on several seeds: intervals of mini.json, verdicts of tell.json, times of pace.json."""

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import METRIC_WORDS, with_half
from benchmarks.analysis.readme.measured import Measured, Row, judged, listed, number, of_all, on_models
from benchmarks.analysis.readme.smoke import BOTH, CONTROL, KEPT, SHARED
from benchmarks.analysis.statistics import Interval

FILE = "mini"
PLAIN = ("none", "none", "kept")


def _difference(row: Row) -> Interval:
    """Return a row's difference from the baseline."""
    return Interval(row["difference_mean"], row["difference_half_width"], row["pairs"])


def _verdicts(measured: Measured, setting: tuple[str, str, str], sign: int = 1) -> dict[str, str]:
    """Return, by model, whether a setting is worse than the baseline; sign -1: whether the baseline is worse."""
    models = measured.settings(FILE)
    found = {name: _difference(model[setting]) for name, model in models.items()}
    signed = {name: Interval(sign * one.mean, one.half_width, one.n) for name, one in found.items()}
    return {name: judged(one, models[name][KEPT]["higher_is_better"]) for name, one in signed.items()}


def five_seeds_words(measured: Measured) -> str:
    """The conclusions that the intervals allow."""
    models = measured.settings(FILE)
    than = {"worse": "worse than *baseline*", "better": "better than *baseline*"}
    without, shared = (
        on_models({name: than.get(said, said) for name, said in _verdicts(measured, one).items()})
        for one in (CONTROL, SHARED)
    )
    less = sum(
        abs(model[SHARED]["difference_mean"]) < abs(model[CONTROL]["difference_mean"]) for model in models.values()
    )
    changed = [name for name, model in models.items() if model[SHARED]["metrics"] != model[BOTH]["metrics"]]
    kept = f"a difference on {listed(changed)}" if changed else "no difference to any digit"
    return (
        f"What the intervals allow to say, of these models at this density: keeping no residuals is {without}; `w+2d` "
        f"is {shared}, and nearer to *baseline* than that on {of_all(less, len(models))}; kept or streamed makes "
        f"{kept}. Against training without compression *baseline* is {on_models(_verdicts(measured, PLAIN, -1))}."
    )


def compression_costs(measured: Measured) -> str:
    """Say on how many models the full residual is worse than no compression."""
    verdicts = _verdicts(measured, PLAIN, -1)
    return of_all(list(verdicts.values()).count("worse"), len(verdicts))


def price(measured: Measured) -> str:
    """The price of `w+2d` by the seeds of mini.json, and on how many models it is shown."""
    rows = [model[SHARED] for model in measured.settings(FILE).values()]
    texts = grouped((row["metric_name"], _change(_difference(row), row["metric_name"])) for row in rows)
    shown = sum(_difference(row).verdict in ("higher", "lower") for row in rows)
    return (
        f"*w+2d* against *baseline* over {_seeds({row['pairs'] for row in rows})}, ± half of a paired 95 % interval: "
        + ", ".join(f"{METRIC_WORDS.get(name, name)} {listed(each)}" for name, each in texts.items())
        + f"; {of_all(shown, len(rows))} {'excludes' if shown == 0 else 'exclude'} zero"
    )


def _change(found: Interval, metric: str) -> str:
    points = " points" if metric == "accuracy" else ""
    zero = "" if found.verdict in ("higher", "lower") else " (includes zero)"
    return f"{with_half(abs(found.mean), found.half_width, 1)}{points} {'more' if found.mean > 0 else 'less'}{zero}"


def _seeds(counts: set[int]) -> str:
    return f"{' to '.join(number(one) for one in sorted(counts))} seeds"


def residuals_matter(measured: Measured) -> str:
    """Say on how many models training without residuals ends measurably worse."""
    models = measured.load("tell")["models"]
    count = sum(entry["loss"]["mean"] > entry["loss"]["half_width"] for entry in models.values())
    return f"residuals matter for {of_all(count, len(models))} models, by the whole paired 95 % interval"


def streaming_time(measured: Measured) -> str:
    """Steps per second with streamed gradients over those with kept ones.

    pace.json has rows: model, scheme, pairs (of rounds, in turn), mean ratio over these, and its half_width.
    """
    schemes: dict[str, dict[str, Interval]] = {}
    for row in measured.load("pace")["rows"]:
        schemes.setdefault(row["scheme"], {})[row["model"]] = Interval(row["ratio"], row["half_width"], row["pairs"])
    return "; ".join(_ratios(scheme, found) for scheme, found in schemes.items())


def _ratios(scheme: str, found: dict[str, Interval]) -> str:
    words = {"higher": "faster", "lower": "slower"}
    verdicts = {name: Interval(one.mean - 1, one.half_width, one.n).verdict for name, one in found.items()}
    return (
        f"*{scheme}, streamed* {' / '.join(with_half(one.mean, one.half_width, 2) for one in found.values())} of "
        f"*{scheme}, kept*'s steps per second ({' / '.join(name.partition('-')[0] for name in found)}): "
        + on_models({name: words.get(one, one) for name, one in verdicts.items()})
    )
