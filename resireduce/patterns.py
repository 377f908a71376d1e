"""Groups given as shell patterns of parameter names, for models whose structure does not show them."""

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor

from resireduce.errors import ConfigError
from resireduce.grouping import Grouping, cut

FORM = '{"groups": ["blocks.*.fc.weight", ["a.weight", "b.weight"]], "specific": ["embedding.weight"]}'
"""An example, for messages."""


def match_groups(patterns: Mapping[str, object], parameters: Mapping[str, Tensor]) -> Grouping:
    """Return the grouping that `patterns` describe among `parameters` (by name, in the order of the model).

    Args:
        patterns: {"groups": [...], "specific": [...]}, either may be left out. An entry of "groups" is a pattern, whose
            matches are cut as a run of equal layers is (up to six are one group, more are cut in threes), or a list of
            patterns, whose matches are one group as they are. An entry of "specific" is a pattern.

    Raises ConfigError for another form, and for a pattern that nothing matches.
    """
    unknown = sorted(set(patterns) - {"groups", "specific"})
    if unknown:
        raise ConfigError(f"groups: key {unknown[0]!r} is not known; give {FORM}")
    groups: list[tuple[str, ...]] = []
    for entry in _entries(patterns, "groups"):
        if isinstance(entry, str):
            groups += cut(_matches([entry], parameters))
        else:
            groups.append(tuple(_matches(_strings(entry), parameters)))
    grouping = Grouping(tuple(groups), tuple(_matches(_strings(_entries(patterns, "specific")), parameters)))
    grouping.check(parameters)
    return grouping


def _entries(patterns: Mapping[str, object], key: str) -> list[object]:
    entries = patterns.get(key, [])
    if not isinstance(entries, list | tuple):
        raise ConfigError(f"groups: {key!r} is {entries!r}, not a list; give {FORM}")
    return list(entries)


def _strings(entries: object) -> list[str]:
    if isinstance(entries, list | tuple) and all(isinstance(entry, str) for entry in entries):
        return list(entries)
    raise ConfigError(f"groups: {entries!r} is no list of patterns; give {FORM}")


def _matches(patterns: Iterable[str], parameters: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, in the order of `parameters`, each once."""
    names = list(parameters)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, n=1)
            hint = f" (the closest name is {close[0]!r})" if close else ""
            raise ConfigError(f"groups: no compressed tensor of the model matches {pattern!r}{hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
