"""Fill values into the text of a site file, keeping its explanations and all other lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from benchmarks.core.files import read_text
from benchmarks.core.paths import ROOT
from benchmarks.launching.slurm.site import site_file
from resireduce.errors import ConfigError

UNKNOWN_FORM = "the file is written in a way that cannot be filled in; give the name of a new file"
Values = Mapping[str, Any]


def template(path: Path) -> str:
    """Return the text of a site file, or, if there is none, of the one that comes with the project.

    Raises ConfigError, with one line, if it cannot be read.
    """
    source = path if path.exists() else site_file(ROOT)
    try:
        return read_text(source)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"write: {source} cannot be read: {error}; give another file") from None


def fill(text: str, partitions: Mapping[str, Values], site: Values) -> str:
    """Return the text with these limits of partitions and these values of the site.

    Partitions and keys that are not named stay unchanged. Raises ConfigError if the text is written in a way that
    values cannot be filled into.
    """
    before, filled = _load(text), text if text.endswith("\n") else f"{text}\n"
    for path, values in [*((("partitions", name), own) for name, own in partitions.items()), (("site",), site)]:
        for key, value in values.items():
            filled = _set(filled, (*path, key), value)
    wanted = {**before, "site": {**(before.get("site") or {}), **site}}
    old = before.get("partitions") or {}
    new = {name: {**(old.get(name) or {}), **values} for name, values in partitions.items()}
    wanted["partitions"] = {**old, **new}
    try:
        same = _load(filled) == wanted
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(f"write: {UNKNOWN_FORM}")
    return filled


def shown(partitions: Mapping[str, Values], site: Values) -> str:
    """Return only the values, as they would stand in the file."""
    return yaml.safe_dump(
        {"partitions": {name: dict(values) for name, values in partitions.items()}, "site": dict(site)}, sort_keys=False
    ).rstrip()


def _load(text: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"write: the file is no YAML: {' '.join(str(error).split())}; mend it first") from None
    if not isinstance(values, dict):
        raise ConfigError("write: the file has neither partitions nor site; give the name of a new file")
    return values


def _set(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with a value at a path of keys; missing keys are added after the others."""
    node: Any = yaml.compose(text, yaml.SafeLoader)
    column, at = -2, 0
    for depth, key in enumerate(path):
        is_last, entries = depth == len(path) - 1, _entries(node, path[depth - 1])
        if isinstance(node, MappingNode) and node.flow_style:
            return _set(_opened(text, node, column + 2), path, value)
        if key not in entries:
            column = node.value[0][0].start_mark.column if entries else column + 2
            at = _line_end(text, _end(node) if entries else at)
            text = f"{text[:at]}\n{' ' * column}{_dump(key)}:{f' {_dump(value)}' if is_last else ''}{text[at:]}"
            return text if is_last else _set(text, path, value)
        name, node = entries[key]
        column, at = name.start_mark.column, name.end_mark.index
    comment = text[at : node.start_mark.index].strip(" \n:")  # the comment of a list that begins on the next line
    return f"{text[:at]}: {_dump(value)}{f'  {comment}' if comment else ''}{text[_end(node) :]}"


def _entries(node: Node, key: str) -> dict[str, tuple[Node, Node]]:
    """Return the keys and values below a key, by key. Raises ConfigError if its value is not a mapping."""
    if not isinstance(node, MappingNode) and node.value:
        raise ConfigError(f"write: {key} is no mapping; give the name of a new file")
    return {name.value: (name, value) for name, value in node.value}


def _opened(text: str, node: Node, column: int) -> str:
    """Return the text with a key's inline value, {} or longer, moved to lines of its own below the key."""
    begin, end = node.start_mark.index, node.end_mark.index
    if not column or "\n" in text[begin:end]:
        raise ConfigError(f"write: {UNKNOWN_FORM}")
    values, line_end = yaml.safe_load(text[begin:end]), _line_end(text, end)
    below = "".join(f"\n{' ' * column}{_dump(key)}: {_dump(item)}" for key, item in values.items())
    return f"{text[:begin].rstrip()}{text[end:line_end]}{below}{text[line_end:]}"


def _end(node: Any) -> int:
    """Return where the last value in a node ends; the node's own end lies after trailing comments."""
    if isinstance(node, ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, MappingNode) else last)


def _line_end(text: str, at: int) -> int:
    return text.index("\n", at)


def _dump(value: Any) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("...").strip()
