"""From a config (defaults and a list of products) to the cells of a run. Standard library only."""

from itertools import product
from typing import Any

from benchmarks.cell import CELL_FIELDS, Cell
from benchmarks.checks import known_keys
from resireduce.errors import ConfigError


def expand(config: dict[str, Any]) -> list[Cell]:
    """Return the cells of {"defaults": {field: value}, "matrix": [{field: value or list of values}]}, each once.

    An entry stands for the product of its lists. Raises ConfigError, one line that names entry, field and value.
    """
    known_keys("config", config, ("defaults", "matrix"))
    defaults = known_keys("defaults", config.get("defaults") or {}, CELL_FIELDS)
    entries = config.get("matrix")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"matrix: {entries!r} is not allowed; give a list of entries, at least one")
    cells: dict[Cell, None] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"matrix entry {number}"
        cells.update(dict.fromkeys(_entry_cells(where, defaults, entry)))
    return list(cells)


def _entry_cells(where: str, defaults: dict[str, Any], entry: Any) -> list[Cell]:
    values = {**defaults, **known_keys(where, entry, CELL_FIELDS)}
    if "model" not in values:
        raise ConfigError(f"{where}: model: missing; name it here or in defaults")
    names = [name for name in CELL_FIELDS if name in values]
    choices = [_choices(where, name, values[name]) for name in names]
    try:
        return [Cell(**dict(zip(names, combination, strict=True))) for combination in product(*choices)]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _choices(where: str, name: str, value: Any) -> list[Any]:
    # A cell's `released` is itself a list: one list of names is one choice, a list of lists are several.
    several = isinstance(value, list) and (name != "released" or any(isinstance(item, list) for item in value))
    choices = value if several else [value]
    if not choices:
        raise ConfigError(f"{where}: {name}: [] is not allowed; give a value or a list of at least one")
    return [_number_from_yaml(where, name, choice) for choice in choices]


def _number_from_yaml(where: str, name: str, value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text: say so, instead of only that text is no number."""
    if name == "density" and isinstance(value, str):
        try:
            meant = float(value)
        except ValueError:
            return value
        plain = f"{meant:.12f}".rstrip("0")
        raise ConfigError(f"{where}: {name}: {value!r} is text to YAML; write {plain} without quotes or exponent")
    return value
