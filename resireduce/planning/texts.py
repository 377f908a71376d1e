"""Values that a command line gives as text. What is no value of the kind stays a text, and is refused by name later.

Imports no torch.
"""

import json
from pathlib import Path

from resireduce.errors import ConfigError

PYTHONS = {"True": True, "False": False, "None": None}
"""Values that are often written as in Python, not as in JSON."""


def as_number(text: str) -> float | str:
    """Return the float that `text` says, or `text` itself."""
    try:
        return float(text)
    except ValueError:
        return text


def as_count(text: str) -> int | str:
    """Return the int that `text` says, or `text` itself."""
    try:
        return int(text)
    except ValueError:
        return text


def as_pair(text: str) -> tuple[str, object]:
    """Return name and value of the `text` "name=value": a value in JSON or as Python writes it, or as it is."""
    name, _, value = text.partition("=")
    if value in PYTHONS:
        return name, PYTHONS[value]
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def arguments_in(field: str, texts: list[str]) -> dict[str, object]:
    """Return arguments from `texts` "name=value". Raises ConfigError of `field` for other forms, or a name twice."""
    found: dict[str, object] = {}
    for text in texts:
        name, value = as_pair(text)
        if not name.isidentifier() or "=" not in text:
            raise ConfigError(f"{field}: {text!r} is not allowed; give NAME=VALUE, such as layers=12")
        if name in found:
            raise ConfigError(f"{field}: {name!r} is given twice; give it once")
        found[name] = value
    return found


def patterns_in(path: str | None) -> str | dict[str, object]:
    """Return the groups that the file at `path` describes; "auto" without one. Raises ConfigError for a bad file."""
    if path is None:
        return "auto"
    try:
        patterns = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"groups: {path!r} cannot be read as JSON: {error}; give a file of patterns") from error
    if not isinstance(patterns, dict):
        raise ConfigError(f"groups: {path!r} holds no JSON object with the keys groups and specific")
    return patterns
