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

from benchmarks.core.checks import first_twice
from resireduce.errors import ConfigError

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
    """Say whether there is no NaN and no infinity in value; whole numbers are finite, however large."""
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, list | tuple):
        # Long lists contain numbers or pairs of them: this is many times faster than one call for each.
        plain = set(map(type, value)) <= {float, int}
        with suppress(OverflowError):
            return all(map(math.isfinite, value)) if plain else all(map(all_finite, value))
        return all(map(all_finite, value))  # one was too large for a float
    return not isinstance(value, float) or math.isfinite(value)


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
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        os.close(handle)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
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
    if path.exists() and not path.is_file():
        raise ConfigError(f"{field}: {path} is not a file; give the name of one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"{field}: {path} cannot be written: {error.strerror}; give a file in a folder of yours"
        ) from None


def load_json(path: Path) -> Any:
    """Read strict JSON. Raises OSError, or ValueError for text that is half written, or holds NaN or a duplicate key.

    OSError is also raised for a pipe or a device, which might never end, and for more than LARGEST_FILE bytes.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or status.st_size > LARGEST_FILE:
        raise OSError(errno.EINVAL, f"it is no file of up to {LARGEST_FILE:,} bytes", str(path))
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not strict JSON")


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
