"""Check what a reference file says before a run is compared with it: with gaps in it, less would be compared."""

from collections.abc import Sequence
from typing import Any

from benchmarks.analysis.check.reference_rows import Row
from benchmarks.analysis.table import BASELINE, SAME_WORK
from benchmarks.core.checks import all_of, first_twice, is_text
from resireduce.errors import ConfigError

FORMAT = 1
KEYS = {"format", "made_by", "provenance", "history", "rows"}
MADE_BY = "python -m benchmarks check --accept"
FACTS = ("device", "torch", "python", "cpu", "commit", "dirty")
"""Where measurements come from: facts that decide how exactly they can be compared, and the code."""
ONE_OF = ("device", "torch")
"""Those that decide it by themselves: all measurements of a reference, and of a run, have the same."""


def check_head(values: dict[str, Any]) -> None:
    """Raise ConfigError, with one line, for anything but the rows that --accept would not have written."""
    version, provenance, history = (values.get(name) for name in ("format", "provenance", "history"))
    if version is True or not isinstance(version, int) or version != FORMAT or values.keys() != KEYS:
        names = ", ".join(sorted(map(str, KEYS ^ values.keys())))
        more = f", and its keys differ by {names}" if names else ""
        raise ConfigError(f"has format {version!r}{more}; this code reads {FORMAT}")
    if not isinstance(provenance, dict) or provenance.keys() != set(FACTS):
        raise ConfigError(f"provenance: {str(provenance)[:80]!r} is not a mapping of {', '.join(FACTS)}")
    for name in ONE_OF:
        if not is_text(provenance[name]):
            raise ConfigError(f"provenance: {name}: {provenance[name]!r} is not a text")
    if not all_of(history, dict) or not history:
        raise ConfigError(f"history: {str(history)[:80]!r} is not a list of at least one acceptance")
    if not isinstance(values["rows"], list) or not values["rows"]:
        raise ConfigError(f"rows: {str(values['rows'])[:80]!r} is not a list of at least one setting")


def check_rows(rows: Sequence[Row]) -> None:
    """Raise ConfigError, with one line, for a setting that is there twice, or has not the bytes of its baseline."""
    if twice := first_twice(row.setting for row in rows):
        raise ConfigError(f"{twice.name} is there twice")
    baselines = [row for row in rows if all(getattr(row.setting, name) == value for name, value in BASELINE.items())]
    for row in rows:
        allowed = _totals(row, baselines)
        if allowed and row.baseline_total_bytes not in allowed:
            raise ConfigError(
                f"{row.setting.name}: baseline_total_bytes: {row.baseline_total_bytes} is not the total of its "
                f"baseline, {allowed[0]}"
            )


def _totals(row: Row, baselines: Sequence[Row]) -> list[int]:
    """Return the bytes of the baselines nearest to a setting, chosen as for tables."""
    own = row.setting
    like = [one for one in baselines if all(getattr(one.setting, name) == getattr(own, name) for name in SAME_WORK)]
    far = [(one.setting.steps != own.steps, abs(one.setting.density - own.density)) for one in like]
    return [one.total_bytes for one, distance in zip(like, far, strict=True) if distance == min(far)]
