"""What a config takes from the one that it extends: `only` selects values, `instead` replaces them."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from benchmarks.core.cell import CELL_FIELDS, NAME_LISTS, Cell
from benchmarks.core.checks import known_keys
from resireduce.errors import LONGEST_VALUE, ConfigError, short

ONLY, INSTEAD = "only", "instead"
PLAIN = tuple(name for name in CELL_FIELDS if name not in (*NAME_LISTS, "options"))
"""Fields that `only` can select by: their values are not themselves lists or mappings."""
DEFAULTS = {field.name: field.default for field in fields(Cell) if field.default is not MISSING}

Entry = dict[str, Any]


def taken(base: Mapping[str, Any], config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return matrix and parts of `base`, the config called `name`, after `only` and `instead` of `config`.

    only: {field: value or list}: keeps of each entry's lists the values that are among these, drops entries that have
    none of them, and drops parts without entries. instead: {field: value or list}: replaces these fields in each entry
    that is left. Raises ConfigError, one line, for a field that cells do not have, for a value that no entry has, and
    if nothing is left.
    """
    only = {field: _several(value) for field, value in known_keys(ONLY, config.get(ONLY, {}), PLAIN).items()}
    instead = known_keys(INSTEAD, config.get(INSTEAD, {}), CELL_FIELDS)
    groups = {None: base["matrix"], **{part: its["matrix"] for part, its in base["parts"].items()}}
    _check_known(only, [entry for entries in groups.values() for entry in entries], name)
    left = {part: [entry | instead for entry in _chosen(entries, only)] for part, entries in groups.items()}
    if not any(left.values()):
        raise ConfigError(
            f"{ONLY}: {short(only, LONGEST_VALUE)} leaves no cell of {name}; give values that one entry has together"
        )
    parts = {part: its | {"matrix": left[part]} for part, its in base["parts"].items() if left[part]}
    return {"matrix": left[None], "parts": parts}


def _chosen(entries: Sequence[Entry], only: Mapping[str, list[Any]]) -> list[Entry]:
    """Return the entries reduced to their wanted values, without entries that have none."""
    found = []
    for entry in entries:
        kept = {field: [one for one in _values(entry, field) if _is_in(one, wanted)] for field, wanted in only.items()}
        if all(kept.values()):
            found.append(entry | kept)
    return found


def _check_known(only: Mapping[str, list[Any]], entries: Sequence[Entry], name: str) -> None:
    for field, wanted in only.items():
        known = [value for entry in entries for value in _values(entry, field)]
        for value in wanted:
            if not any(_is_in(one, [value]) for one in known):
                listed = ", ".join(dict.fromkeys(map(short, known)))
                given = short(value, LONGEST_VALUE)
                raise ConfigError(f"{ONLY}: {field}: {given} is in no entry of {name}; allowed: {listed}")


def _is_in(value: Any, wanted: Sequence[Any]) -> bool:
    """Return whether value is wanted; Snakemake's command line turns wanted values into texts."""
    return value in wanted or str(value) in wanted


def _values(entry: Entry, field: str) -> list[Any]:
    """Return an entry's values of a field; the cell's default if the entry does not name it."""
    return _several(entry.get(field, DEFAULTS.get(field)))


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
