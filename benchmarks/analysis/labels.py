"""How numbers and cells are written for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.core import scheme_options
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.scheme_options import texts
from resireduce.scheme import COMPRESSORS

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
ABSENT = "\N{EN DASH}"
SCHEME_WORDS = {"none": "none (no residual)"}
METRIC_WORDS = {"f1": "F1"}
RARE = tuple(name for name in CELL_FIELDS if name not in ("model", "scheme", "gradients", "seed"))


def mebibytes(count: int | None) -> str:
    """Return bytes as MiB, to the KiB."""
    return ABSENT if count is None else f"{count / 2**20:.2f}"


def percent(ratio: float | None) -> str:
    """Return a ratio in per cent."""
    return ABSENT if ratio is None else f"{100 * ratio:.1f} %"


def metric_value(value: float) -> str:
    """Return a metric with the digits that differ between runs."""
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}"


def signed(difference: float, value: float) -> str:
    """Return a difference with its sign, with as many decimals as `value` is written with."""
    text = f"{abs(difference):.{4 if abs(value) < 1 else 3}f}"
    return f"±{text}" if float(text) == 0 else f"{'+' if difference > 0 else MINUS}{text}"


def with_half(value: float, half_width: float | None, digits: int) -> str:
    """Return a mean ± half of its interval, if it has one."""
    return f"{value:.{digits}f}" + (f" ± {half_width:.{digits}f}" if half_width is not None else "")


def signed_with_half(difference: float, half_width: float | None, digits: int) -> str:
    """Return a difference ± half of its interval, with its sign unless it rounds to zero."""
    zero = float(f"{abs(difference):.{digits}f}") == 0
    sign = "" if zero else MINUS if difference < 0 else "+"
    return sign + with_half(abs(difference), half_width, digits)


def metric_heading(row: Mapping[str, Any]) -> str:
    """Return model and metric of a row, with an arrow that says which way is better."""
    name = METRIC_WORDS.get(row["metric_name"], row["metric_name"])
    return f"{row['model']}, {name} {'↑' if row['higher_is_better'] else '↓'}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a Markdown table; `align` has one letter per column, "r" for right-aligned ones."""
    line = "|".join("---:" if letter == "r" else "---" for letter in align)
    return "\n".join([f"| {' | '.join(head)} |", f"|{line}|", *(f"| {' | '.join(row)} |" for row in rows)])


def short_labels(settings: Sequence[Cell]) -> list[str]:
    """Return "scheme, gradients" for each setting, plus those rarer fields in which the settings differ."""
    values = {name: {getattr(setting, name) for setting in settings if _means(setting, name)} for name in RARE}
    varying = [name for name in RARE if len(values[name]) > 1]
    return [_label(setting, varying) for setting in settings]


def _means(setting: Cell, name: str) -> bool:
    """Say whether a field means anything for a setting."""
    if name == "density":
        return COMPRESSORS[setting.compressor].selects
    return name != "compressor" or setting.compressor != "none"


def _label(setting: Cell, varying: Sequence[str]) -> str:
    plain = setting.compressor == "none"
    gradients = "streamed, updated in backward" if setting.update == "in_backward" else setting.gradients
    parts = ["no compression" if plain else SCHEME_WORDS.get(setting.scheme, setting.scheme), gradients]
    for name in varying:
        value = getattr(setting, name)
        if value is not None and value != () and _means(setting, name):
            parts.append(_with_name(name, value))
    return ", ".join(parts)


def _with_name(name: str, value: Any) -> str:
    if name == "compressor":
        return str(value)
    if name == "options":
        return ", ".join(f"{option.replace('_', ' ')} {text}" for option, text in texts(value).items())
    if name == "merge":
        return f"merge {scheme_options.merge_text(value)}"
    words = {"released": "as released", "observe": "observed"}.get(name, name.replace("_", " "))
    return f"{words} {', '.join(value) if isinstance(value, tuple) else value}"


def printable(text: str) -> str:
    """Return text for the screen: what could steer a terminal, or is no character, is written as an escape."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def say(text: str) -> None:
    """Print text, which may hold what a record says, so that it cannot steer a terminal."""
    print(printable(text))
