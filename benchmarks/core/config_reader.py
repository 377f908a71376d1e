"""`python -m benchmarks cells`: lists the cells of a config, including those it takes from the one that it extends.

`only` selects values of that one, `instead` replaces them. Imports no torch.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.cell import CELL_FIELDS, NAME_LISTS, Cell
from benchmarks.core.checks import LONGEST_NAME, allow, known_keys, within
from benchmarks.core.files import once, read_text
from benchmarks.core.matrix import chosen_parts, spread
from benchmarks.core.run_config import get_cells, get_run_name
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


EXAMPLE = "benchmarks/config/smoke.yaml"
CURE = "one of benchmarks/config, or your own (what it extends is looked for beside it)"
HOLDS = "run, defaults and matrix or parts"
MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        try:
            once([(key.value if key.tag == MERGE else self.construct_object(key, True), None) for key, _ in node.value])
        except (ValueError, TypeError) as error:  # TypeError: a key that is a list or a mapping
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Refuse what YAML 1.1 reads as another number than is written."""
        value = self.construct_scalar(node)
        if ":" in value or re.fullmatch(r"[-+]?0[0-7_]+", value):
            meant = super().construct_yaml_int(node)
            raise ValueError(f"YAML takes it for {meant}; write that number, or quotes if it is a text")
        return super().construct_yaml_int(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # such as a date with a month 13
            problem = f"{short(getattr(node, 'value', ''))} cannot be read: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--config", type=Path, required=True, help="a YAML file, e.g. benchmarks/config/smoke.yaml")
    parser.add_argument("--part", help="names of parts, with commas (default: all)")


def main(args: argparse.Namespace) -> int:
    """Print the cells' names, one a line. Raises ConfigError, one line, for a config that cannot be used."""
    config = read_config(args.config, args.part)
    with within(args.config):
        get_run_name(config)
        print("\n".join(get_cells(config)))
    return 0


def read_config(path: Path, part: str | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML file, merged with the config that it extends, and with `part` set if given.

    Raises ConfigError, one line with the place of the error.
    """
    config = read_yaml(path)
    with within(path):
        config = extend(config, path.parent, read_yaml)
    return config if part is None else config | {"part": part}


def read_yaml(
    path: Path, field: str = "config", cure: str = CURE, holds: str = HOLDS, example: str = EXAMPLE
) -> dict[str, Any]:
    """Return the mapping in a YAML file unchanged. Raises ConfigError as read_config does.

    The error calls the file `field` and says what to do: to give `cure` instead, to write into it what it `holds`, or
    to do as in the file `example`.
    """
    try:
        config = yaml.load(read_text(path), _Loader)
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}; give {cure}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{field}: {path} is no text: {error}; save it as UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{field}: {path}{where}: {problem}; mend that place, as in {example}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{field}: {path} holds no mapping; give {holds}")
    return config


EXTENDS = "extends"
TOGETHER = ("defaults", "matrix", "parts", ONLY, INSTEAD)
"""Keys by which the two configs are merged; everything else comes from this config alone."""


def extend(config: Mapping[str, Any], folder: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return config with `extends`, if present, replaced by the matrix and the parts of the config that it names.

    It names a file, relative to folder, which read reads. Defaults are written into the entries of their own file, so
    that its cells stay the same except for the changes that `only` and `instead` make. Raises ConfigError, one line,
    for a file that cannot be read or itself extends another one, for a part that both configs have, and for `only` and
    `instead` that choose what does not exist.
    """
    config = dict(config)
    if EXTENDS not in config:
        for key in (ONLY, INSTEAD):
            if key in config:
                raise ConfigError(f"{key}: not allowed without {EXTENDS}; name the config that cells are taken from")
        return config
    name = config.pop(EXTENDS)
    is_name = isinstance(name, str) and name and "\0" not in name and len(name) <= LONGEST_NAME
    allow(EXTENDS, name, is_name, f"the name of a file, such as paper.yaml, of up to {LONGEST_NAME} characters")
    base = read(folder / name)
    if EXTENDS in base:
        inner = short(base[EXTENDS], LONGEST_VALUE)
        raise ConfigError(f"{EXTENDS}: {name} extends {inner} itself; extend that one, or put them together")
    theirs, own = taken(_checked(base, f"{EXTENDS}: {name}: "), config, name), _checked(config)
    if both := sorted(theirs["parts"].keys() & own["parts"].keys(), key=str):
        raise ConfigError(f"{EXTENDS}: part {both[0]!r} is in {name} too; give it another name here")
    kept = {key: value for key, value in config.items() if key not in TOGETHER}
    together = {"matrix": [*theirs["matrix"], *own["matrix"]], "parts": {**theirs["parts"], **own["parts"]}}
    return kept | {key: cells for key, cells in together.items() if cells}


def _checked(config: dict[str, Any], where: str = "") -> dict[str, Any]:
    chosen_parts({key: config[key] for key in config if key == "parts"})  # checks that parts are mappings
    return spread(config, where)
