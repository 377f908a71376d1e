"""Read paper/tables.yaml: the tables and figures of the paper as data."""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from benchmarks.analysis.paper.quantity import ALL as QUANTITIES
from benchmarks.analysis.paper.spec import Line, Spec, Wanted, other
from benchmarks.core.checks import known_keys, mapping, several
from benchmarks.core.config_reader import read_yaml
from resireduce.errors import ConfigError, choose

SPECS_FILE = Path(__file__).with_name("tables.yaml")
PLAIN = ("title", "reading", "each_once", "extra", "figure")
LISTS = ("parts", "models", "stated", "notes")
KEYS = (*PLAIN, *LISTS, "like", "lines", "quantity", "against", "more", "but", "compared", "columns")


@lru_cache
def load_specs() -> dict[str, Spec]:
    """Return the specifications by name, in file order. Raises ConfigError, with one line, for an invalid one."""
    values = known_keys(str(SPECS_FILE), read_yaml(SPECS_FILE), ("settings", "tables"))
    settings, tables = (mapping(f"{SPECS_FILE}: {name}", values.get(name)) for name in ("settings", "tables"))
    return {name: _spec(f"{SPECS_FILE}: {name}", name, entry, tables, settings) for name, entry in tables.items()}


def _spec(where: str, name: str, entry: Any, tables: Mapping[str, Any], settings: Mapping[str, Wanted]) -> Spec:
    entry = known_keys(where, entry, KEYS)
    if "like" in entry:
        entry = tables[choose(f"{where}: like", entry["like"], tables)] | entry
    if missing := {"title", "reading", "parts", "lines", "more"} - entry.keys():
        raise ConfigError(f"{where}: {min(missing)}: missing; give it")
    more, but = ([merged(f"{where}: {key}", one, settings) for one in entry.get(key, [])] for key in ("more", "but"))
    column = entry.get("compared")
    plain: dict[str, Any] = {key: entry[key] for key in PLAIN if key in entry}
    plain |= {key: tuple(several(f"{where}: {key}", entry[key])) for key in LISTS if key in entry}
    return Spec(
        name=name,
        **plain,
        lines=tuple(_line(where, entry, one, settings) for one in several(f"{where}: lines", entry["lines"])),
        more=tuple(more),
        but=tuple(but),
        compared=(column["heading"], partial(other, merged(where, column["to"], settings))) if column else None,
        columns=tuple((heading, text) for heading, text in entry.get("columns", [])),
    )


def _line(where: str, entry: Mapping[str, Any], given: Any, settings: Mapping[str, Wanted]) -> Line:
    line = {key: entry[key] for key in ("quantity", "against") if key in entry} | mapping(f"{where}: lines", given)
    where = f"{where}: line {line.get('label')!r}"
    known_keys(where, line, ("label", "of", "quantity", "against", "published"))
    return Line(
        label=str(line.get("label")),
        wanted=merged(f"{where}: of", line.get("of"), settings),
        quantity=QUANTITIES[choose(f"{where}: quantity", line.get("quantity", "metric"), QUANTITIES)],
        against=partial(other, merged(where, line["against"], settings)) if "against" in line else None,
        published=line.get("published", ""),
    )


def merged(where: str, given: Any, settings: Mapping[str, Wanted]) -> Wanted:
    """Return cell fields and their values from one mapping, or from a list of mappings and names in `settings`."""
    found: dict[str, Any] = {}
    for one in given if isinstance(given, list) else [given]:
        found |= mapping(where, one) if not isinstance(one, str) else settings[choose(where, one, settings)]
    return found
