"""Expands a config (defaults, a list of products, named parts) into the cells of a run. Standard library only."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.core.cell import CELL_FIELDS, NAME_LISTS, Cell
from benchmarks.core.checks import allow, is_text, known_keys, optional, several, within
from benchmarks.core.scheme_options import is_plan
from resireduce.errors import choose

KEYS = ("part", "defaults", "matrix", "parts")
"""Keys of a config that define its cells."""
IMAGE_KEYS = ("runtime", "image")
"""Keys of a config that say where its cells run."""
WHOLE = "matrix"
"""Name of the part that stands for cells outside of all parts."""
WORDS = ("title", "about")
"""Keys of a part that are descriptions for readers."""


def expand(config: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a config, each once, even if several parts contain it.

    {"defaults": {field: value}, "matrix": [entry], "parts": {name: {"title", "about", "defaults", "matrix"}},
    "part": names}: matrix or parts may be missing; an entry, {field: value or list of values}, stands for the product
    of its lists; a part's defaults override the config's; `part` says which of the parts count, none means all.
    Raises ConfigError, one line that names part, entry, field and value.
    """
    return list(dict.fromkeys(cell for cells in expand_parts(config).values() for cell in cells))


def expand_parts(config: Mapping[str, Any]) -> dict[str, list[Cell]]:
    """Return the cells of each part that counts, by its name; those outside of parts are under `WHOLE`."""
    known_keys("config", dict(config), KEYS)
    usual = known_keys("defaults", optional("defaults", config, "defaults"), CELL_FIELDS)
    parts, found = optional("parts", config, "parts"), {}
    for name, part in parts.items():
        allow("parts", name, is_text(name), "a text as its name, in quotes if it is digits")
        known_keys(f"part {name}", part, (*WORDS, "defaults", "matrix"))
        for word in WORDS:
            allow(f"part {name}: {word}", part.get(word), part.get(word) is None or is_text(part[word]), "a text")
    chosen = _chosen(config.get("part"), parts)
    if chosen is None and ("matrix" in config or not parts):
        found[WHOLE] = _cells("matrix", usual, config.get("matrix"))
    for name in parts if chosen is None else [name for name in parts if name in chosen]:
        own, where = optional(f"part {name}: defaults", parts[name], "defaults"), f"part {name}: defaults"
        together = usual | known_keys(where, own, CELL_FIELDS)
        found[name] = _cells(f"part {name}: matrix", together, parts[name].get("matrix"))
    return found


def _chosen(given: Any, parts: Mapping[str, Any]) -> list[str] | None:
    """Return the names in `part`, a comma-separated text or a list; None without `part`, so that all count."""
    if given is None or given == "":
        return None
    names = given if isinstance(given, list) else str(given).split(",")
    return [choose("part", str(name).strip(), parts) for name in names]


def _cells(where: str, defaults: dict[str, Any], entries: Any) -> list[Cell]:
    found: dict[Cell, None] = {}
    for number, entry in enumerate(several(where, entries), start=1):
        with within(f"{where} entry {number}"):
            values = defaults | known_keys("entry", entry, CELL_FIELDS)
            names = [name for name in CELL_FIELDS if name in values]
            combinations = product(*(_choices(name, values[name]) for name in names))
            found |= dict.fromkeys(Cell.from_dict(dict(zip(names, one, strict=True))) for one in combinations)
    return list(found)


def _choices(name: str, value: Any) -> Sequence[Any]:
    # A cell's `released` is itself a list: one list of names is one choice, a list of lists is several.
    # So is its `merge`, if that is a list of lists of names.
    several = isinstance(value, list) and (name not in NAME_LISTS or any(isinstance(item, list) for item in value))
    choices = value if several and not (name == "merge" and is_plan(value)) else [value]
    return list(allow(name, choices, choices, "a value or a list of at least one"))
