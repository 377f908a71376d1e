"""`python -m benchmarks cells`: lists the cells of a config, including those it extends. Imports no torch."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.cell import CELL_FIELDS
from benchmarks.core.checks import allow, known_keys, optional, several, within
from benchmarks.core.files import once, read_text
from benchmarks.core.matrix import WORDS, chosen_parts
from benchmarks.core.run_config import get_cells, get_run_name
from benchmarks.core.taking import INSTEAD, ONLY, taken
from resireduce.errors import LONGEST_VALUE, ConfigError, short

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
LONGEST_NAME = 255
"""Most characters of the name of a config that is extended, which messages repeat; Linux allows as many of a file."""
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
    theirs, own = taken(_spread(f"{EXTENDS}: {name}: ", base), config, name), _spread("", config)
    if both := sorted(theirs["parts"].keys() & own["parts"].keys(), key=str):
        raise ConfigError(f"{EXTENDS}: part {both[0]!r} is in {name} too; give it another name here")
    kept = {key: value for key, value in config.items() if key not in TOGETHER}
    together = {"matrix": [*theirs["matrix"], *own["matrix"]], "parts": {**theirs["parts"], **own["parts"]}}
    return kept | {key: cells for key, cells in together.items() if cells}


def _spread(where: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return matrix and parts with all defaults written into their entries."""
    chosen_parts({key: config[key] for key in config if key == "parts"})  # checks that parts are mappings
    usual = known_keys(f"{where}defaults", optional(f"{where}defaults", config, "defaults"), CELL_FIELDS)
    matrix = _entries(f"{where}matrix", usual, config["matrix"]) if "matrix" in config else []
    parts = {}
    for name, part in (config.get("parts") or {}).items():
        place = f"{where}part {name}: defaults"
        own = known_keys(place, optional(place, part, "defaults"), CELL_FIELDS)
        entries = _entries(f"{where}part {name}: matrix", {**usual, **own}, part.get("matrix"))
        parts[name] = {key: part[key] for key in WORDS if key in part} | {"matrix": entries}
    return {"matrix": matrix, "parts": parts}


def _entries(where: str, defaults: dict[str, Any], entries: Any) -> list[dict[str, Any]]:
    return [
        {**defaults, **known_keys(f"{where} entry {number}", entry, CELL_FIELDS)}
        for number, entry in enumerate(several(where, entries), start=1)
    ]
