"""JSON files that are never half written and never hold NaN."""

import errno
import fcntl
import hashlib
import json
import math
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from benchmarks.core.checks import first_twice
from resireduce.errors import ConfigError

MOST_DIGITS = 300
"""Most digits of a whole number; a float holds 308."""
TEMPORARY = ".resireduce-"
"""Start of temporary names, which are short: that of a file may already be as long as names can be."""
DEEPEST = 100
"""Most levels of lists and mappings in each other in a JSON file: a record has ten, and each level takes a call or two
wherever values are looked at."""
TOO_DEEP = "it is nested too deeply"
LARGEST_FILE = 2_000_000_000
"""Largest JSON file that is read, in bytes: a record of many ranks and steps has a hundredth of it."""


def finite(value: Any) -> Any:
    """Return value with every NaN and infinity in it replaced by None, and tuples by lists."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def all_finite(value: Any) -> bool:
    """Say whether there is no NaN, no infinity and no whole number too large for a float in value."""
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, list | tuple):
        # Long lists contain numbers or pairs of them: this is many times faster than one call for each.
        plain = set(map(type, value)) <= {float, int}
        try:
            return all(map(math.isfinite, value)) if plain else all(map(all_finite, value))
        except OverflowError:
            return False
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max  # False for NaN


def save_json(values: Any, path: Path) -> None:
    """Write values as strict JSON under a temporary name in the same folder, flush it to disk, then rename."""
    save_text(json.dumps(values, indent=1, allow_nan=False) + "\n", path)


def save_text(text: str, path: Path) -> None:
    """Replace the file at path as save_bytes does."""
    save_bytes(text.encode(), path)


def save_bytes(data: bytes, path: Path) -> None:
    """Replace the file at path as `replacing` does."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that atomically replaces the one at path at the end, or is deleted if anything is raised.

    A reader sees either the old or the new content, even after a crash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY}{uuid4().hex}.tmp"
    try:
        with open(temporary, "xb") as file:  # with the permissions of any new file, which the umask decides
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk names no file
            error.filename = str(path)
        raise


@contextmanager
def alone(path: Path, waiting: str = "") -> Iterator[None]:
    """Hold a lock on a file, which the kernel drops however this process ends; print `waiting` if another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def writable(field: str, path: Path) -> None:
    """Make the folder of a file that will be written. Raises ConfigError, one line, if it cannot be written."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{field}: {path} is not a file; give the name of one")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=TEMPORARY, suffix=".tmp", dir=path.parent):
            pass
    except OSError as error:
        file = next((one for one in path.parents if os.path.exists(one) and not os.path.isdir(one)), None)
        reason = error.strerror if file is None else f"{file} is a file, not a folder"
        shown = str(path) if len(str(path)) <= 300 else f"{str(path)[:300]}..."
        raise ConfigError(f"{field}: {shown} cannot be written: {reason}; give a file in a folder of yours") from None


def load_json(path: Path) -> Any:
    """Read strict JSON. Raises OSError as read_text does, or ValueError for text that is half written or not strict.

    Not strict are NaN, a duplicate key, a number too large for a float, half a character (a lone surrogate), and more
    than DEEPEST levels.
    """
    text = read_text(path)
    try:
        values = json.loads(
            text, parse_constant=_refuse, parse_int=_integer, parse_float=_float, object_pairs_hook=once
        )
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if _is_deep(values):
        raise ValueError(TOO_DEEP)
    if "\\ud" in text or "\\uD" in text:  # elsewhere in UTF-8 there is none
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{error.object[error.start]!a} is half a character") from None
    return values


def read_text(path: Path) -> str:
    """Return the text of a file. Raises OSError or UnicodeDecodeError if it cannot be read.

    OSError is also raised for a pipe or a device, which might never end, and for more than LARGEST_FILE bytes.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or status.st_size > LARGEST_FILE:
        raise OSError(errno.EINVAL, f"it is no file of up to {LARGEST_FILE:,} bytes", str(path))
    return path.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark, which is no content


def try_json(path: Path) -> Any:
    """Read strict JSON; return None where `load_json` would raise."""
    with suppress(OSError, ValueError):
        return load_json(path)
    return None


def once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return key-value pairs as a mapping. Raises ValueError for a duplicate key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"key {first_twice(key for key, _ in pairs)!r} is there twice")
    return values


def _is_deep(values: Any) -> bool:
    """Say whether values have more than DEEPEST levels, looked at one after another, without recursion."""
    level = [values]
    for _ in range(DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [value for those in inner for value in those if isinstance(value, dict | list)]
    return bool(level)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not strict JSON")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{text[:20]}... is too large a number")
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
