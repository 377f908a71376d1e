"""`extends` in a config: another config, all of whose cells belong to this one too. Imports no torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cell import CELL_FIELDS
from benchmarks.checks import known_keys
from benchmarks.matrix import chosen_parts
from resireduce.errors import ConfigError

EXTENDS = "extends"
TOGETHER = ("defaults", "matrix", "parts")
"""What of the two configs is put together; all else is this config's own."""


def extend(config: Mapping[str, Any], folder: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return config without `extends`: with the matrix and the parts of the config that it names, if it names one.

    The name is a file's, relative to folder, which read reads. Each entry keeps the defaults of its own file, so that
    its cells are those of that file; defaults are no longer apart. Raises ConfigError, one line, for a file that
    cannot be read or extends another one itself, and for a part that both have.
    """
    config = dict(config)
    if EXTENDS not in config:
        return config
    name = config.pop(EXTENDS)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{EXTENDS}: {name!r} is not allowed; give the name of a file, such as paper.yaml")
    base = read(folder / name)
    if EXTENDS in base:
        raise ConfigError(f"{EXTENDS}: {name} extends {base[EXTENDS]} itself; extend that one, or put them together")
    theirs, own = _spread(f"{EXTENDS}: {name}: ", base), _spread("", config)
    if both := sorted(theirs["parts"].keys() & own["parts"].keys(), key=str):
        raise ConfigError(f"{EXTENDS}: part {both[0]!r} is in {name} too; give it another name here")
    matrix = [*theirs["matrix"], *own["matrix"]]
    kept = {key: value for key, value in config.items() if key not in TOGETHER}
    return kept | ({"matrix": matrix} if matrix else {}) | {"parts": {**theirs["parts"], **own["parts"]}}


def _spread(where: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return matrix and parts with all defaults written into their entries."""
    chosen_parts({key: config[key] for key in config if key == "parts"})  # that parts are mappings
    usual = known_keys(f"{where}defaults", config.get("defaults") or {}, CELL_FIELDS)
    matrix = _entries(f"{where}matrix", usual, config["matrix"]) if "matrix" in config else []
    parts = {}
    for name, part in (config.get("parts") or {}).items():
        own = known_keys(f"{where}part {name}: defaults", part.get("defaults") or {}, CELL_FIELDS)
        entries = _entries(f"{where}part {name}: matrix", {**usual, **own}, part.get("matrix"))
        parts[name] = {key: value for key, value in part.items() if key == "title"} | {"matrix": entries}
    return {"matrix": matrix, "parts": parts}


def _entries(where: str, defaults: dict[str, Any], entries: Any) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{where}: {entries!r} is not allowed; give a list of entries, at least one")
    return [
        {**defaults, **known_keys(f"{where} entry {number}", entry, CELL_FIELDS)}
        for number, entry in enumerate(entries, start=1)
    ]
