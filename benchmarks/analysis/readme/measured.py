"""The committed measurements as the blocks of pages read them, where they were made, and words for their values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.statistics import Interval
from benchmarks.analysis.tables.intervals import usual_rows
from benchmarks.core.files import load_json
from resireduce.errors import ConfigError

Row = dict[str, Any]
Settings = dict[tuple[str, str, str], Row]
"""Rows of one model, by compressor, scheme and gradients."""


class Measured:
    """The JSON files of a folder like results/reference, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.load = cache(self._load)

    def _load(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        try:
            found: dict[str, Any] = load_json(path)
            return found
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None

    def settings(self, name: str) -> dict[str, Settings]:
        """Return, by model, the rows of a file of `python -m benchmarks intervals`: two ranks, usual density."""
        return usual_rows(self.load(name)["rows"])

    def origin(self, name: str) -> str:
        """Return with how many seeds, on which machine and from which commit a file was measured."""
        values = self.load(name)
        seeds = sorted({row["seeds"] for row in values["rows"]})
        count = " to ".join(number(one) for one in dict.fromkeys((seeds[0], seeds[-1])))
        where = values["measured"]
        machines = listed([machine(cpu, cores) for cpu in where["Processor"] for cores in where["Cores"]])
        commits = listed([f"`{commit[:7]}`" for commit in where["Commit"]])
        dirty = " with uncommitted changes" if where.get("Uncommitted changes", ["no"]) != ["no"] else ""
        return f"{count} seed{'' if seeds[-1] == 1 else 's'} on {machines}, commit {commits}{dirty}"


def machine(cpu: str, cores: int | str) -> str:
    """Return the usual name of a processor, from the name that the kernel gives it."""
    plain = re.sub(r"\((R|TM)\)| Processor| CPU", "", cpu)
    return f"{cores} cores (" + re.sub(r" @ ([0-9.]+)GHz", r" at \1 GHz", plain) + ")"


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
LEVEL = 0.05
"""Level below which a p-value counts, matching 95 % intervals."""


def number(count: int) -> str:
    """Return a count as a word, up to ten."""
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def listed(texts: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def percents(ratios: Iterable[float]) -> str:
    """Return ratios in per cent, separated by slashes: "74.9 / 75.0 %"."""
    return f"{' / '.join(f'{100 * ratio:.1f}' for ratio in ratios)} %"


def span(values: Iterable[float], digits: int) -> str:
    """Return "a to b" of the least and the greatest value, or one number if both are written alike."""
    texts = [f"{one:.{digits}f}" for one in sorted(values)]
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def judged(difference: Interval, higher_is_better: bool) -> str:
    """Return the verdict on a difference of metrics: worse, better, or the words of `Interval.verdict`."""
    verdict = difference.verdict
    return verdict if verdict not in ("higher", "lower") else _better((verdict == "higher") == higher_is_better)


def compared(tested: float, against: float, higher_is_better: bool) -> str:
    """Return worse, equal or better for two plain values."""
    return "equal" if tested == against else _better((tested > against) == higher_is_better)


def _better(better: bool) -> str:
    return "better" if better else "worse"


def on_models(verdicts: Mapping[str, str]) -> str:
    """Return verdicts by model in words: "worse on all four", or which models if they differ."""
    alike = grouped((verdict, model) for model, verdict in verdicts.items())
    if len(alike) == 1:
        return f"{next(iter(alike))} on all {number(len(verdicts))}"
    return ", ".join(f"{verdict} on {listed(models)}" for verdict, models in alike.items())


def of_all(count: int, total: int) -> str:
    """Return "all four", "three of the four" or "none of the four"."""
    return f"all {number(total)}" if count == total else f"{number(count)} of the {number(total)}"


def p_text(value: float) -> str:
    """Return a p-value with one significant digit, or two decimals."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.01 else f"{value:.2f}"
