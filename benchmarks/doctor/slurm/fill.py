"""Values filled into the text of a site file, so that explanations, and lines of others, stay."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cluster.site import site_file
from benchmarks.workflow.content import ROOT
from resireduce.errors import ConfigError

KEY = re.compile(r"^(?P<indent> *)(?P<key>[^\s#'\"-][^:#]*|'[^']*'|\"[^\"]*\") *:(?= |$)(?P<value>.*)$")
Values = Mapping[str, Any]


def template(path: Path) -> str:
    """Return the text of a site file, or of the one that the project comes with if there is none.

    Raises ConfigError, one line, if it cannot be read.
    """
    source = path if path.exists() else site_file(ROOT)
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"write: {source} cannot be read: {error}; give another file") from None


def fill(text: str, partitions: Mapping[str, Values], site: Values) -> str:
    """Return the text with these limits of partitions and these values of the site.

    Partitions and keys that are not named stay as they are. Raises ConfigError if the text is written in a way that
    values cannot be filled into.
    """
    before = _load(text)
    lines = text.splitlines()
    for name, values in partitions.items():
        lines = _set_in(lines, ["partitions", name], values)
    lines = _set_in(lines, ["site"], site)
    filled = "\n".join(lines) + "\n"
    wanted = {**before, "site": {**(before.get("site") or {}), **site}}
    old = before.get("partitions") or {}
    new = {name: {**(old.get(name) or {}), **values} for name, values in partitions.items()}
    wanted["partitions"] = {**old, **new}
    try:
        same = _load(filled) == wanted
    except ConfigError:
        same = False
    if not same:
        raise ConfigError("write: the file is written in a way that cannot be filled in; give the name of a new file")
    return filled


def shown(partitions: Mapping[str, Values], site: Values) -> str:
    """Return the values alone, as the file would have them."""
    return yaml.safe_dump(
        {"partitions": {name: dict(values) for name, values in partitions.items()}, "site": dict(site)},
        sort_keys=False,
    ).rstrip()


def _load(text: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"write: the file is no YAML: {' '.join(str(error).split())}; mend it first") from None
    if not isinstance(values, dict):
        raise ConfigError("write: the file has neither partitions nor site; give the name of a new file")
    return values


def _set_in(lines: list[str], path: list[str], values: Values) -> list[str]:
    """Set values of the mapping at a path of keys; keys that are not there are added."""
    begin, end, indent = 0, len(lines), 0
    for key in path:
        at = _find(lines, begin, end, indent, key)
        if at is None:
            at = _end_of(lines, begin, end)
            lines = [*lines[:at], f"{' ' * indent}{_dump(key)}:", *lines[at:]]
            end += 1
        else:
            opened = _open(lines, at, indent)
            end += len(opened) - len(lines)
            lines = opened
        begin, end = at + 1, _section_end(lines, at + 1, end, indent)
        indent = _indent(lines, begin, end, indent + 2)
    for key, value in values.items():
        at = _find(lines, begin, end, indent, key)
        line = f"{' ' * indent}{key}: {_dump(value)}"
        if at is None:
            at = _end_of(lines, begin, end)
            lines = [*lines[:at], line, *lines[at:]]
            end += 1
        else:
            after = _section_end(lines, at + 1, end, indent)
            comment = _comment(KEY.sub(r"\g<value>", lines[at]))
            lines = [*lines[:at], line + comment, *lines[after:]]
            end -= after - at - 1
    return lines


def _find(lines: list[str], begin: int, end: int, indent: int, key: str) -> int | None:
    """The line of a key of that indentation."""
    for at in range(begin, end):
        match = KEY.match(lines[at])
        if match and len(match["indent"]) == indent and str(yaml.safe_load(match["key"])) == key:
            return at
    return None


def _open(lines: list[str], at: int, indent: int) -> list[str]:
    """Write what a key has on its own line, {} or more, below it."""
    match = KEY.match(lines[at])
    assert match is not None
    comment = _comment(match["value"])
    value = match["value"].removesuffix(comment)
    values = yaml.safe_load(value) if value.strip() else None
    if value.strip() and not isinstance(values, dict) and values is not None:
        raise ConfigError(f"write: {match['key']} is no mapping; give the name of a new file")
    head = lines[at][: match.end("key")] + ":" + comment
    below = [f"{' ' * (indent + 2)}{_dump(key)}: {_dump(item)}" for key, item in (values or {}).items()]
    return [*lines[:at], head, *below, *lines[at + 1 :]]


def _comment(value: str) -> str:
    """The comment behind a value, with the space before it: it begins with # after a space, outside of quotes."""
    quote = ""
    for at, letter in enumerate(value):
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        elif letter == "#" and not quote and (at == 0 or value[at - 1] == " "):
            return value[len(value[:at].rstrip()) :]
    return ""


def _section_end(lines: list[str], begin: int, end: int, indent: int) -> int:
    """The line after the last one that lies deeper; comments and empty lines before the next key are that key's."""
    last = begin
    for at in range(begin, end):
        text = lines[at].strip()
        deep = len(lines[at]) - len(lines[at].lstrip()) > indent
        if text and not deep and not text.startswith("#"):
            break
        if text and deep:
            last = at + 1 if not text.startswith("#") else last
    return last


def _end_of(lines: list[str], begin: int, end: int) -> int:
    while end > begin and not lines[end - 1].strip():
        end -= 1
    return end


def _indent(lines: list[str], begin: int, end: int, usual: int) -> int:
    """Of the first key of a section."""
    return next((len(match["indent"]) for line in lines[begin:end] if (match := KEY.match(line))), usual)


def _dump(value: Any) -> str:
    """A value on one line, as YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("...").strip()
