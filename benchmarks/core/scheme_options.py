"""Checks a cell's `options` and `merge` before anything runs, and without torch, which residuals need.

The residuals in `resireduce/residuals` say what each option does; `merge` says which tensors travel together.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.core.checks import allow, is_number
from benchmarks.core.content import text_hash
from resireduce.errors import ConfigError, check_share, choose, is_count
from resireduce.scheme import COMPRESSORS, MERGES, ROWS_COLUMNS, SCHEMES, TIMED_MERGES, WEIGHTED

Frozen = tuple[tuple[str, Any], ...]
"""A mapping that can be hashed: its items, sorted by name."""
SAFE = re.compile(r"[A-Za-z0-9.+-]{1,40}")


Check = Callable[[str, Any], Any]
SHARES: dict[str, Check] = dict.fromkeys(("row_ratio", "column_ratio", "ratio", "decay"), check_share)
OTHERS: dict[str, Check] = {
    "phi": lambda field, value: float(
        allow(field, value, is_number(value) and 0 <= value <= 1, "a number from 0 to 1")
    ),
    "norm": lambda field, value: int(allow(field, value, value in (1, 2) and value is not True, "1 or 2")),
    "smallest": lambda field, value: allow(field, value, isinstance(value, bool), "true or false"),
    "norms": lambda field, value: choose(field, value, ("residual", "compensated")),
    "choice": lambda field, value: choose(field, value, ("largest", "softmax")),
}
CHECKS = SHARES | OTHERS
"""How the value of each option is checked."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "resireduce.residuals.group:AverageResidual": (),
    "resireduce.residuals.base:FullResidual": (),
    "resireduce.residuals.base:NoResidual": (),
    WEIGHTED: ("phi", "norms"),
    "resireduce.residuals.group:MemberResidual": ("norm", "smallest"),
    "resireduce.residuals.matrix:RowsResidual": ("row_ratio", "norms", "choice"),
    ROWS_COLUMNS: ("row_ratio", "column_ratio", "norms", "choice"),
    "resireduce.residuals.base:PartialResidual": ("ratio",),
    "resireduce.residuals.base:DecayedResidual": ("decay",),
}
"""Options of each residual. The library itself checks those of residuals missing here, when the cell runs."""


def freeze(options: Any, scheme: str) -> Frozen:
    """Return the options of a scheme, given as a mapping or already frozen, in a hashable form.

    Raises ConfigError, one line, for a name that the scheme does not know or a value that is not allowed.
    """
    given = thaw(options) if isinstance(options, tuple) else options
    allow("options", options, isinstance(given, Mapping), "names and values, such as {row_ratio: 0.25}")
    residuals = {str(one) for one in (SCHEMES[scheme].grouped, SCHEMES[scheme].specific, SCHEMES[scheme].other)}
    if residuals <= OPTIONS.keys():
        known = {name for residual in residuals for name in OPTIONS[residual]}
        given = {choose(f"options of scheme {scheme!r}", name, known): value for name, value in given.items()}
        given = {name: CHECKS[name](name, value) for name, value in given.items()}
    return tuple(sorted(given.items()))


def thaw(options: Frozen) -> dict[str, Any]:
    """Return frozen options as plain values, for YAML, JSON and `resireduce.distribute`."""
    return dict(options)


def names(options: Frozen) -> list[str]:
    """Return each option as a part of a file name; values that cannot be in one are hashed."""
    return [f"{name}-{text if SAFE.fullmatch(text) else text_hash(text)[:8]}" for name, text in texts(options).items()]


def texts(options: Frozen) -> dict[str, str]:
    """Return the values of options as short texts."""
    plain = thaw(options)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in plain.items()}


MERGE_CURE = f"give {', '.join(MERGES)}, a number of bytes, or lists of names of parameters"


def freeze_merge(merge: Any, compressor: str) -> Any:
    """Return `merge`, as `resireduce.distribute` takes it, in a hashable form.

    Raises ConfigError, one line, for a value that is not allowed, or a `compressor` whose payloads cannot be merged.
    """
    if isinstance(merge, str):
        choose("merge", merge, MERGES)
    elif isinstance(merge, list | tuple):
        if not is_plan(merge):
            raise ConfigError(f"merge: {merge!r} is not allowed; {MERGE_CURE}")
        merge = tuple(tuple(names) for names in merge)
    elif not is_count(merge) or merge < 1:
        raise ConfigError(f"merge: {merge!r} is not allowed; {MERGE_CURE}")
    listed, timed = COMPRESSORS[compressor], isinstance(merge, str) and merge in TIMED_MERGES
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
