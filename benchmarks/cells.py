"""`python -m benchmarks cells`: what a config stands for, before anything runs. Imports no torch."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from benchmarks.extends import extend
from benchmarks.files import once
from benchmarks.workflow.settings import get_cells, get_run_name
from resireduce.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, which YAML would let the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        try:
            once([(self.construct_object(key, deep=True), None) for key, _ in node.value])
        except (ValueError, TypeError) as error:  # TypeError: a key that is a list or a mapping
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # such as a date with a month 13
            problem = f"{getattr(node, 'value', '')!r} cannot be read: {error}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--config", type=Path, required=True, help="a YAML file, e.g. benchmarks/config/smoke.yaml")
    parser.add_argument("--part", help="names of parts, with commas (default: all)")


def main(args: argparse.Namespace) -> int:
    """Print the cells' names, one a line. Raises ConfigError, one line, for a config that cannot be used."""
    config = read_config(args.config, args.part)
    try:
        get_run_name(config)
        print("\n".join(get_cells(config)))
    except ConfigError as error:
        raise ConfigError(f"{args.config}: {error}") from None
    return 0


def read_config(path: Path, part: str | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML file, with what it extends put together with it, and with `part` put in if given.

    Raises ConfigError, one line with the place of what is wrong.
    """
    config = read_yaml(path)
    try:
        config = extend(config, path.parent, read_yaml)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config if part is None else config | {"part": part}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file as it stands there. Raises ConfigError as read_config does."""
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"config: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config: {path} is no text: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"config: {path}{where}: {problem}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"config: {path} holds no mapping; give run, defaults and matrix or parts")
    return config
