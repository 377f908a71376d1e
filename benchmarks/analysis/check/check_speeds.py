"""Is compression as fast as it was? Compares records of `make micro` by ratios to the naive form. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import say
from benchmarks.core.checks import first_twice
from benchmarks.core.files import load_json, save_json
from resireduce.errors import ConfigError

RECORD = "micro.json"
"""The file that `make micro` writes in its folder."""
LEAST = 2 / 3
"""Share of the reference's ratio that must be reached: least seconds of rounds vary by a fifth between runs."""
PLAIN = ("copy", "torch.topk", "naive", "GRACE's form")
"""Cases that are not this project's code."""
Place = tuple[int, float, str]


def check_speeds(folder: Path, reference: Path, reason: str | None) -> int:
    """Say which cases of the record in `folder` are slower, relative to the naive form, than those of `reference`.

    Return 1 if any is slower by more than a third, or missing; else 0. reason: None, or why the record becomes the
    reference. Raises ConfigError for invalid records, and for another processor, device or number of threads; also if
    the reference would take the place of a file that is no record of speeds.
    """
    now = _load(folder / RECORD)
    if reason is not None:
        _check_target(folder, reference)
        save_json({**now, "reason": reason}, reference)
        say(f"Accepted: {reference} has {len(now['rows'])} cases")
        return 0
    then = _load(reference)
    _check_alike(now, then, reference)
    slower = _slower(_ratios(now), _ratios(then))
    say("\n".join([*slower, f"{len(slower)} of {len(_ratios(then))} cases are slower than those of {reference}"]))
    return 1 if slower else 0


def _check_alike(now: Mapping[str, Any], then: Mapping[str, Any], reference: Path) -> None:
    """Raise ConfigError for records whose ratios cannot be compared."""
    for name, ours, its in (("device", now, then), ("cpu", now["measured"], then["measured"])):
        if ours[name] != its[name]:
            raise ConfigError(
                f"reference: {reference} was measured with {name} {its[name]!r}, the run with {ours[name]!r}; ratios "
                "of two processors say nothing: make one here with --accept 'why'"
            )
    if now["threads"] != then["threads"]:
        raise ConfigError(
            f"reference: {reference} was measured with threads {then['threads']}, the run with {now['threads']}; the "
            "naive form gains less by threads than others: measure the run again, with make micro OPTIONS="
            f"'--threads {then['threads']}', or make a reference of its own with --accept 'why'"
        )


def _check_target(folder: Path, reference: Path) -> None:
    """Raise ConfigError if a file or folder is in the place of the reference and is no record of speeds."""
    if not reference.exists():
        return
    try:
        _load(reference)
    except ConfigError:
        raise ConfigError(
            f"accept: {folder / RECORD} is a record of speeds, and {reference} is none, so it stays as it is; give "
            f"another file as --reference, or delete {RECORD} if the run's other records are meant"
        ) from None


def _load(path: Path) -> dict[str, Any]:
    """Return a record of speeds. Raises ConfigError, with one line, for a file that is none."""
    try:
        found: dict[str, Any] = load_json(path)
        is_one = isinstance(found["measured"]["cpu"], str) and found["threads"] > 0 and isinstance(found["device"], str)
        if not is_one or not found["rows"] or not all(row["naive_ratio"] > 0 for row in found["rows"]):
            raise ValueError("a processor, device, number of threads or ratio is missing")
        if twice := first_twice(map(_place, found["rows"])):
            raise ValueError(f"{_where(twice)} is there twice")
    except (OSError, LookupError, TypeError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"micro: {path} is no record of speeds: {said}; make one with: make micro") from None
    return found


def _ratios(record: Mapping[str, Any]) -> dict[Place, float]:
    rows = [row for row in record["rows"] if row["case"] not in PLAIN]
    return {_place(row): row["naive_ratio"] for row in rows}


def _place(row: Mapping[str, Any]) -> Place:
    return row["elements"], row["density"], row["case"]


def _where(place: Place) -> str:
    return f"{place[2]}, {place[0]:,} elements, density {place[1]:g}"


def _slower(now: Mapping[Place, float], then: Mapping[Place, float]) -> list[str]:
    lines = []
    for place, ratio in then.items():
        where = _where(place)
        if place not in now:
            lines.append(f"{where}: missing; measure it with: make micro")
        elif now[place] < LEAST * ratio:
            lines.append(f"{where}: {now[place]:.2f} times as fast as the naive form, was {ratio:.2f}")
    return lines
