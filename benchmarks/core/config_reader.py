"""`python -m benchmarks cells`: lists the cells of a config. Imports no torch."""

import argparse
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.cell import Cell
from benchmarks.core.checks import within
from benchmarks.core.files import once
from benchmarks.core.run_config import get_cells, get_run_name
from resireduce.errors import ConfigError

DEFAULTS = {field.name: field.default for field in fields(Cell) if field.default is not MISSING}
EXAMPLE = "benchmarks/config/smoke.yaml"
CURE = "one of benchmarks/config, or your own"
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
    """Return the mapping in a YAML file, with `part` set if given. Raises ConfigError, one line with the place."""
    config = read_yaml(path)
    return config if part is None else config | {"part": part}


def read_yaml(
    path: Path, field: str = "config", cure: str = CURE, holds: str = HOLDS, example: str = EXAMPLE
) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises ConfigError, one line with the place of the error.

    The error calls the file `field` and says what to do: to give `cure` instead, to write into it what it `holds`, or
    to do as in the file `example`.
    """
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}; give {cure}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no text, or such as a date with a month 13
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{field}: {path}{where}: {problem}; mend that place, as in {example}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{field}: {path} holds no mapping; give {holds}")
    return config
