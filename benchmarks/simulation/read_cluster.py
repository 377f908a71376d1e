"""Read clusters from YAML: the suite's presets, and a user's own."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from benchmarks.core.checks import is_text, known_keys, mapping, within
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.paths import ROOT
from benchmarks.simulation.cluster import EXAMPLES, Cluster, Device, Link
from resireduce.errors import ConfigError, choose

PRESETS = ROOT / "benchmarks/simulation/clusters.yaml"
ENDINGS = (".yaml", ".yml")
HOLDS, EXAMPLE = "the fields of a cluster, as nodes: 4", "benchmarks/simulation/clusters.yaml"
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("device", Device, "devices"),
    ("in_node", Link, "links"),
    ("between_nodes", Link, "links"),
)
"""Fields of a cluster that are mappings, or names of mappings in the presets."""


def presets() -> dict[str, Cluster]:
    """Return the clusters that come with the suite, by name."""
    known = read_yaml(PRESETS)
    with within(PRESETS.name):
        return {name: _cluster(one, name, known) for name, one in known["clusters"].items()}


def find_cluster(given: str) -> Cluster:
    """Return the preset called `given`, or the cluster in the YAML file at that path. Raises ConfigError, one line."""
    if given.endswith(ENDINGS):
        values = read_yaml(Path(given), "cluster", "a preset's name, or the file of a cluster", HOLDS, EXAMPLE)
        with within(given):
            return _cluster(values, Path(given).stem, read_yaml(PRESETS))
    try:
        return presets()[choose("cluster", given, read_yaml(PRESETS)["clusters"])]
    except ConfigError as error:
        raise ConfigError(f"{error}; or give a file of your own, *.yaml") from None


def _cluster(given: Any, name: str, known: Mapping[str, Any]) -> Cluster:
    """Return the cluster from plain values; `known` has the devices and links that it may name."""
    values = known_keys("cluster", given, (field.name for field in fields(Cluster)))
    parts = {
        key: _part(key, values[key], kind, known[listed]) for key, kind, listed in PARTS if values.get(key) is not None
    }
    found: Cluster = _made(Cluster, {"name": name, **values, **parts})
    return found


def _part(key: str, given: Any, kind: Any, known: Mapping[str, Any]) -> Any:
    """Return the device or link under a cluster's `key`, given by a known name or as its own mapping."""
    with within(key):
        named = is_text(given)
        values = mapping(key, known[choose(key, given, known)] if named else given)
        known_keys(key, values, (field.name for field in fields(kind)))
        return _made(kind, ({"name": given if named else "own"} if kind is Device else {}) | values)


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return a dataclass from values by field. Raises ConfigError if one is missing or invalid."""
    values = {name: value for name, value in given.items() if value is not None}
    for field in fields(kind):
        if field.name not in values and field.default is MISSING:
            raise ConfigError(f"{field.name}: missing; give {EXAMPLES.get(field.name, 'it')}")
        if field.type is float and isinstance(values.get(field.name), str):
            with suppress(ValueError):  # YAML reads 3.125e9, whose exponent has no sign, as text
                values[field.name] = float(values[field.name])
    return kind(**values)
