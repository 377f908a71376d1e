"""Expands a config (defaults, a list of products, named parts) into the cells of a run. Standard library only."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.core.cell import CELL_FIELDS, NAME_LISTS, Cell
from benchmarks.core.checks import allow, is_text, known_keys, optional, several, within
from benchmarks.core.scheme_options import is_plan
from resireduce.errors import ConfigError, choose

KEYS = ("part", "defaults", "matrix", "parts")
"""Keys of a config that define its cells."""
IMAGE_KEYS = ("runtime", "image", "network")
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
    chosen = chosen_parts(config)
    if chosen is not None:
        config = {key: value for key, value in config.items() if key != "matrix"}
    elif "matrix" not in config and not config.get("parts"):
        config = {**config, "matrix": None}
    found = spread(config, "", chosen)
    whole = {WHOLE: _cells("matrix", found["matrix"])} if "matrix" in config else {}
    return whole | {name: _cells(f"part {name}: matrix", part["matrix"]) for name, part in found["parts"].items()}


def spread(config: Mapping[str, Any], where: str, chosen: Sequence[str] | None = None) -> dict[str, Any]:
    """Return matrix and parts, of which only those `chosen` if given, with all defaults written into their entries.

    where: what messages begin with.
    """
    usual = known_keys(f"{where}defaults", optional(f"{where}defaults", config, "defaults"), CELL_FIELDS)
    matrix = _entries(f"{where}matrix", usual, config["matrix"]) if "matrix" in config else []
    parts = {}
    for name, part in (config.get("parts") or {}).items():
        if chosen is None or str(name) in chosen:
            place = f"{where}part {name}: "
            own = known_keys(f"{place}defaults", optional(f"{place}defaults", part, "defaults"), CELL_FIELDS)
            entries = _entries(f"{place}matrix", {**usual, **own}, part.get("matrix"))
            parts[name] = {key: part[key] for key in WORDS if key in part} | {"matrix": entries}
    return {"matrix": matrix, "parts": parts}


def _entries(where: str, defaults: dict[str, Any], entries: Any) -> list[dict[str, Any]]:
    return [
        {**defaults, **known_keys(f"{where} entry {number}", entry, CELL_FIELDS)}
        for number, entry in enumerate(several(where, entries), start=1)
    ]


def chosen_parts(config: Mapping[str, Any]) -> list[str] | None:
    """Return the names in `part`, a comma-separated text or a list; None without `part`, so that all count."""
    parts = optional("parts", config, "parts")
    for name, part in parts.items():
        allow("parts", name, is_text(name), "a text as its name, in quotes if it is digits")
        known_keys(f"part {name}", part, (*WORDS, "defaults", "matrix"))
        for word in WORDS:
            allow(f"part {name}: {word}", part.get(word), part.get(word) is None or is_text(part[word]), "a text")
    given = config.get("part")
    if given is None or given == "":
        return None
    names = given if isinstance(given, list) else str(given).split(",")
    return [choose("part", str(name).strip(), [str(known) for known in parts]) for name in names]


def _cells(where: str, entries: Sequence[dict[str, Any]]) -> list[Cell]:
    each = (_entry_cells(f"{where} entry {number}", entry) for number, entry in enumerate(entries, start=1))
    return list(dict.fromkeys(cell for cells in each for cell in cells))


def _entry_cells(where: str, values: dict[str, Any]) -> Iterable[Cell]:
    if "model" not in values:
        raise ConfigError(f"{where}: model: missing; name it here or in defaults")
    names = [name for name in CELL_FIELDS if name in values]
    choices = [_choices(where, name, values[name]) for name in names]
    with within(where):
        return [Cell(**dict(zip(names, combination, strict=True))) for combination in product(*choices)]


def _choices(where: str, name: str, value: Any) -> list[Any]:
    # A cell's `released` is itself a list: one list of names is one choice, a list of lists is several.
    # So is its `merge`, if that is a list of lists of names.
    several = isinstance(value, list) and (name not in NAME_LISTS or any(isinstance(item, list) for item in value))
    several = several and not (name == "merge" and is_plan(value))
    choices = value if several else [value]
    return list(allow(f"{where}: {name}", choices, choices, "a value or a list of at least one"))
