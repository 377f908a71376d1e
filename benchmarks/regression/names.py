"""Settings and quantities by names that people read."""

from collections.abc import Iterable

from benchmarks.cell import Cell
from benchmarks.report.labels import short_labels
from benchmarks.report.table import BASELINE

QUANTITY_WORDS = {
    "saving": "saving",
    "peak_saving": "saving at the fullest moment",
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "residuals_bytes": "residuals",
    "optimizer_states_bytes": "optimizer states",
    "total_bytes": "total",
    "in_flight_bytes": "in flight",
    "peak_states_bytes": "fullest moment",
    "throughput_ratio": "speed against the baseline's",
    "metric": "metric",
    "record": "record",
}


def usual_of(settings: Iterable[Cell]) -> Cell | None:
    """Return the first baseline: what others are told apart from; None if there is none."""
    return next((one for one in settings if all(getattr(one, name) == BASELINE[name] for name in BASELINE)), None)


def label_of(setting: Cell, usual: Cell | None) -> str:
    """Return "w+2d, kept on vgg-digits", with the rarer fields in which a setting differs from the usual one."""
    return f"{short_labels([setting, usual or setting])[0]} on {setting.model}"


def shares(old: float, new: float) -> tuple[str, str, str]:
    """Return two shares in per cent and their distance in points, with as many digits as make them differ."""
    digits = next((n for n in range(1, 6) if round(100 * abs(new - old), n) > 0), 6)
    texts = [f"{100 * value:.{digits}f} %" for value in (old, new)]
    return texts[0], texts[1], f"{100 * abs(new - old):.{digits}f}"


def change_text(quantity: str, old: float, new: float) -> str:
    """Return "saving 16.4 % -> 15.9 %: 0.5 points less", or bytes with their difference."""
    word, direction = QUANTITY_WORDS[quantity], "more" if new > old else "less"
    if quantity in ("saving", "peak_saving"):
        before, after, points = shares(old, new)
        return f"{word} {before} -> {after}: {points} points {direction}"
    relative = f" ({'+' if new > old else '-'}{100 * abs(new - old) / abs(old):.3g} %)" if old else ""
    if quantity.endswith("_bytes"):
        return f"{word} {int(old):,} -> {int(new):,}: {int(abs(new - old)):,} bytes {direction}{relative}"
    return f"{word} {old:.6g} -> {new:.6g}{relative}"
