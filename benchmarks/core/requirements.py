"""Lock files of Python packages: every one at an exact version, with the hashes of its files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from resireduce.errors import ConfigError

CURE = "make the file anew with 'make locks'"
PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.+!-]+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", re.ASCII)


@dataclass(frozen=True)
class Pin:
    """A package that a lock file pins."""

    name: str
    """Normalised, as in PEP 503: lower case, single hyphens."""
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file of that version, in 64 hexadecimal digits."""
    line: int
    """Line at which it begins in the file, from 1."""


def read_lock(path: Path) -> tuple[Pin, ...]:
    """Return the packages of a lock file, in its order. Raises ConfigError, one line, if it does not pin them."""
    pins: dict[str, Pin] = {}
    for line, text in _requirements(path):
        found = PINNED.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"lock: {path}, line {line}: {text[:80]!r} is not a package as name==version with its hashes, each "
                f"--hash=sha256: and 64 hex digits; {CURE}"
            )
        name, hashes = canonicalize_name(found[1]), tuple(re.findall("[0-9a-f]{64}", found[3]))
        if name in pins:
            earlier = f"{pins[name].version} in line {pins[name].line}"
            raise ConfigError(f"lock: {path}, line {line}: {name} is there twice: {earlier} already; {CURE}")
        pins[name] = Pin(name, found[2], hashes, line)
    if not pins:
        raise ConfigError(f"lock: {path} names no package; {CURE}")
    return tuple(pins.values())


def _requirements(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each logical line: a backslash at the end continues a line, comments are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"lock: {path} is not text; {CURE}") from None
    except OSError as error:
        raise ConfigError(f"lock: {path} cannot be read: {error.strerror}; {CURE}") from None
    begun, parts = 0, list[str]()
    for line, raw in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#.*", "", raw).strip()
        begun = begun if parts else line
        parts.append(text.removesuffix("\\").strip())
        if not text.endswith("\\"):
            if whole := " ".join(filter(None, parts)):
                yield begun, whole
            parts = []
    if parts:
        raise ConfigError(f"lock: {path}, line {begun}: the file ends within a requirement; {CURE}")
