"""The run's name and cells in a config, and how a run's folder stores them. Imports no torch."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.checks import allow, known_keys
from benchmarks.core.files import save_bytes, save_json, try_json
from benchmarks.core.matrix import IMAGE_KEYS, KEYS, expand
from benchmarks.core.record import CellResult, RecordError
from resireduce.errors import ConfigError, choose, is_count

CONFIG_KEYS = ("run", "site", *IMAGE_KEYS, *KEYS)
RUNTIMES = ("none", "docker", "apptainer")
"""What runs cells; none: this machine's own python."""
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def get_runtime(given: Mapping[str, Any]) -> str:
    """Return the runtime of cells, from a user's `runtime` and `image`, which may be None. Raises ConfigError."""
    runtime = choose("runtime", str(given.get("runtime") or "none"), RUNTIMES)
    if runtime == "none" and given.get("image") is not None:
        raise ConfigError(f"image: {given['image']!r} is of no use without a runtime; give runtime docker or apptainer")
    return runtime


def get_run_name(config: Mapping[str, Any]) -> str:
    """Return the name of the run's folder. Raises ConfigError if it cannot be one."""
    name = config.get("run", "smoke")
    name = str(name) if is_count(name) else name  # as Snakemake's --config run=2026 gives it
    allowed = "a folder name of up to 100 letters, digits, '.', '_' and '-', in quotes if YAML takes it for no text"
    shown = name[:120] if isinstance(name, str) else name
    return str(allow("run", shown, isinstance(name, str) and RUN_NAME.fullmatch(name), allowed))


def get_cells(config: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the cells of a config by name. Raises ConfigError, one line, for anything not allowed in config."""
    config = {key: one for key, one in config.items() if key != "network"}  # which runs from before may have
    known_keys("config", config, CONFIG_KEYS)
    for key in ("image", "site"):
        allow(key, config.get(key), key not in config or isinstance(config[key], str), "a text")
    cells = expand({key: value for key, value in config.items() if key in KEYS})
    return {cell.name: cell for cell in cells}


def get_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of config that define the matrix, and the image if there is one, as plain values.

    The result is the same whatever file the config was read from.
    """
    keys = [key for key in CONFIG_KEYS if key in config and (key, config[key]) != ("runtime", "none")]
    return json.loads(json.dumps({key: config[key] for key in keys}))


def check_records(folder: str, cells: Mapping[str, Cell]) -> None:
    """Raise RecordError, one line with the path, if a record that a run would count as finished cannot be used."""
    for name, cell in cells.items():
        path = Path(folder) / f"cells/{name}.json"
        if path.exists() and (found := CellResult.load(path).cell) != cell:
            raise RecordError(f"{path}: the record is of another cell, {found.name}; delete it and run again")


def keep_earlier(folder: str, names: Iterable[str]) -> None:
    """Copy the records of cells that will run again to the run's folder `earlier`, before Snakemake deletes them."""
    for name in names:
        record = Path(folder) / f"cells/{name}.json"
        if record.exists():
            save_bytes(record.read_bytes(), Path(folder) / f"earlier/{name}.json")


def write_specs(folder: str, config: Mapping[str, Any], cells: Iterable[Cell]) -> None:
    """Write a run's config, from which it can be rerun, and one spec per cell, for `python -m benchmarks run`.

    Existing specs are left alone: flushing thousands of files to a shared disk takes minutes.
    """
    save_json(get_config(config), Path(folder) / "config.json")
    for cell in cells:
        path = Path(folder) / f"specs/{cell.name}.json"
        if try_json(path) != cell.to_dict():
            save_json(cell.to_dict(), path)
