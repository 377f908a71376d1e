"""Lock files of Python packages: every one at an exact version, with the hashes of its files."""

import re
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


def read_lock(path: Path) -> tuple[Pin, ...]:
    """Return the packages of a lock file, in its order. Raises ConfigError, one line, if it does not pin them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"lock: {path} cannot be read: {error}; {CURE}") from None
    pins = []
    for line in re.sub(r"(?m)(^|\s)#.*", "", text).replace("\\\n", " ").splitlines():
        if line.strip():
            if (found := PINNED.fullmatch(line.strip())) is None:
                raise ConfigError(
                    f"lock: {path}: {line.strip()[:80]!r} is not a package as name==version with its hashes, each "
                    f"--hash=sha256: and 64 hex digits; {CURE}"
                )
            pins.append(Pin(canonicalize_name(found[1]), found[2], tuple(re.findall("[0-9a-f]{64}", found[3]))))
    return tuple(pins)
