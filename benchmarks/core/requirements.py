"""Lock files of Python packages: every one at an exact version, with the hashes of its files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from resireduce.errors import ConfigError

CURE = "make the file anew with 'make locks'"
HASH = re.compile(r"--hash=(\S*)")
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")


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
        pin = _pin(path, line, text)
        if pin.name in pins:
            earlier = pins[pin.name]
            raise _error(path, line, f"{pin.name} is there twice: {earlier.version} in line {earlier.line} already")
        pins[pin.name] = pin
    if not pins:
        raise ConfigError(f"lock: {path} names no package; {CURE}")
    return tuple(pins.values())


def _requirements(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each logical line: a backslash at the end continues a line, comments are left out."""
    begun, parts = 0, list[str]()
    for line, raw in enumerate(_text(path).splitlines(), start=1):
        if raw.startswith(CONFLICT):
            raise _error(path, line, "a merge conflict is left in it")
        text = re.sub(r"(^|\s)#.*", "", raw).strip()
        begun = begun if parts else line
        parts.append(text.removesuffix("\\").strip())
        if not text.endswith("\\"):
            if whole := " ".join(filter(None, parts)):
                yield begun, whole
            parts = []
    if parts:
        raise _error(path, begun, "the file ends within a requirement")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"lock: {path} is not text; {CURE}") from None
    except OSError as error:
        raise ConfigError(f"lock: {path} cannot be read: {error.strerror}; {CURE}") from None
    if "\0" in text:
        raise ConfigError(f"lock: {path} is not text; {CURE}")
    return text


def _pin(path: Path, line: int, text: str) -> Pin:
    """Return the package that one logical line pins. Raises ConfigError."""
    if text.startswith("-"):
        raise _error(path, line, f"{text.split(maxsplit=1)[0]!r} is an option; it may hold packages only")
    requirement = _requirement(path, line, HASH.sub("", text).strip())
    hashes = HASH.findall(text)
    for value in hashes:
        if not SHA256.fullmatch(value):
            raise _error(path, line, f"{requirement.name}: the hash {value!r} is not sha256: and 64 hex digits")
    if not hashes:
        raise _error(path, line, f"{requirement.name} has no hash")
    version = next(iter(requirement.specifier)).version
    digests = tuple(value.removeprefix("sha256:") for value in hashes)
    return Pin(canonicalize_name(requirement.name), version, digests, line)


def _requirement(path: Path, line: int, text: str) -> Requirement:
    """Return the requirement, which must pin one version on every platform. Raises ConfigError."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise _error(path, line, f"{text[:80]!r} is not a package with a version") from None
    if requirement.url:
        raise _error(path, line, f"{requirement.name} comes from an address")
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        raise _error(path, line, f"{text[:80]!r} is not pinned with == to one version")
    if requirement.marker or requirement.extras:
        raise _error(path, line, f"{text[:80]!r} has a condition or an extra; a lock is for one Python on one platform")
    return requirement


def _error(path: Path, line: int, problem: str) -> ConfigError:
    return ConfigError(f"lock: {path}, line {line}: {problem}; {CURE}")
