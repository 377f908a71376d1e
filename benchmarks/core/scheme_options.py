"""Checks a cell's `options` and `merge` before anything runs, and without torch, which residuals need.

The residuals in `resireduce/residuals` say what each option does; `merge` says which tensors travel together.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.core.checks import allow, is_number
from benchmarks.core.content import text_hash
from resireduce.errors import ConfigError, check_share, choose, is_count, short
from resireduce.scheme import COMPRESSORS, MERGES, ROWS_COLUMNS, SCHEMES, WEIGHTED

Frozen = tuple[tuple[str, Any], ...]
"""A mapping that can be hashed: its items, sorted by name."""
SAFE = re.compile(r"[A-Za-z0-9.+-]{1,40}")


def _weight(field: str, value: Any) -> float:
    return float(allow(field, value, is_number(value) and 0 <= value <= 1, "a number from 0 to 1"))


def _norm(field: str, value: Any) -> int:
    return int(allow(field, value, not isinstance(value, bool) and value in (1, 2), "1 or 2"))


def _yes_or_no(field: str, value: Any) -> Any:
    return allow(field, value, isinstance(value, bool), "true or false")


def _plain(field: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(value.items())
    is_plain = value is None or isinstance(value, str | int | float)
    return allow(field, value, is_plain, "a number, a text, true or false, or a mapping")


def _one_of(*names: str) -> Callable[[str, Any], str]:
    return lambda field, value: choose(field, value, names)


NORMS, CHOICES = _one_of("residual", "compensated"), _one_of("largest", "softmax")
CHECKS: dict[str, dict[str, Callable[[str, Any], Any]]] = {
    "resireduce.residuals.group:AverageResidual": {},
    "resireduce.residuals.base:FullResidual": {},
    "resireduce.residuals.base:NoResidual": {},
    WEIGHTED: {"phi": _weight, "norms": NORMS},
    "resireduce.residuals.group:MemberResidual": {"norm": _norm, "smallest": _yes_or_no},
    "resireduce.residuals.matrix:RowsResidual": {"row_ratio": check_share, "norms": NORMS, "choice": CHOICES},
    ROWS_COLUMNS: {"row_ratio": check_share, "column_ratio": check_share, "norms": NORMS, "choice": CHOICES},
    "resireduce.residuals.base:PartialResidual": {"ratio": check_share},
    "resireduce.residuals.base:DecayedResidual": {"decay": check_share},
}
"""Allowed options of each residual. The library itself checks those of residuals missing here, when the cell runs."""


def freeze(options: Any, scheme: str) -> Frozen:
    """Return the options of a scheme, given as a mapping or already frozen, in a hashable form.

    Raises ConfigError, one line, for a name that the scheme does not know or a value that is not allowed.
    """
    given = thaw(options) if isinstance(options, tuple) else options
    allow("options", options, isinstance(given, Mapping), "names and values, such as {row_ratio: 0.25}")
    residuals = {SCHEMES[scheme].grouped, SCHEMES[scheme].specific, SCHEMES[scheme].other}
    known = {name: check for residual in residuals for name, check in CHECKS.get(str(residual), {}).items()}
    frozen = []
    for name, value in given.items():
        if residuals <= CHECKS.keys():
            choose(f"options of scheme {scheme!r}", name, known)
        frozen.append((str(name), known.get(name, _plain)(name, value)))
    return tuple(sorted(frozen))


def thaw(options: Frozen) -> dict[str, Any]:
    """Return frozen options as plain values, for YAML, JSON and `resireduce.distribute`."""
    return {name: dict(value) if isinstance(value, tuple) else value for name, value in options}


def names(options: Frozen) -> list[str]:
    """Return each option as a part of a file name; values that cannot be in one are hashed."""
    return [f"{name}-{text if SAFE.fullmatch(text) else text_hash(text)[:8]}" for name, text in texts(options).items()]


def texts(options: Frozen) -> dict[str, str]:
    """Return the values of options as short texts."""
    plain = thaw(options)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in plain.items()}


MOST_BYTES = 2**63 - 1
"""Most bytes that a field may name: no memory has more, and the name of a cell contains them."""
MERGE_CURE = f"give {', '.join(MERGES)}, a number of bytes, or lists of names of parameters"


def freeze_merge(merge: Any, compressor: str) -> Any:
    """Return `merge`, as `resireduce.distribute` takes it, in a hashable form.

    Raises ConfigError, one line, for a value that is not allowed, or a `compressor` whose payloads cannot be merged.
    """
    if is_count(merge) and merge > MOST_BYTES:
        raise ConfigError(f"merge: {short(merge)} is not allowed; give a number of bytes up to {MOST_BYTES}")
    if isinstance(merge, str):
        choose("merge", merge, MERGES)
    elif isinstance(merge, list | tuple):
        if not is_plan(merge):
            raise ConfigError(f"merge: {merge!r} is not allowed; {MERGE_CURE}")
        merge = tuple(tuple(names) for names in merge)
    elif isinstance(merge, bool) or not isinstance(merge, int) or merge < 1:
        raise ConfigError(f"merge: {merge!r} is not allowed; {MERGE_CURE}")
    listed, timed = COMPRESSORS[compressor], isinstance(merge, str) and merge in MERGES[3:]
    if listed.rounds_merge and timed:
        raise ConfigError(
            f"merge: {merge!r} is not allowed with compressor {compressor!r}, whose exchanges no rule by time knows; "
            "allowed: none, one, hybrid, bytes and lists of names"
        )
    if merge != "none" and listed.in_rounds and not listed.rounds_merge:
        raise ConfigError(
            f"merge: {merge!r} is not allowed with compressor {compressor!r}, whose payloads ranks make in rounds of "
            "one tensor each; allowed: none"
        )
    return merge


def thaw_merge(merge: Any) -> Any:
    """Return frozen `merge` as plain values."""
    return [list(names) for names in merge] if isinstance(merge, tuple) else merge


def is_plan(merge: Any) -> bool:
    """Whether `merge` is lists of names, one for each message."""
    lists = isinstance(merge, list | tuple) and merge and all(isinstance(names, list | tuple) for names in merge)
    return bool(lists) and all(names and all(isinstance(name, str) for name in names) for names in merge)


def merge_name(merge: Any) -> list[str]:
    """Return frozen `merge` as parts of a file name, none if nothing is merged; lists are hashed."""
    return [] if merge == "none" else [f"merge-{merge_text(merge)}"]


def merge_text(merge: Any) -> str:
    """Return frozen `merge` in one word; lists are hashed."""
    return text_hash(json.dumps(merge))[:8] if isinstance(merge, tuple) else str(merge)
