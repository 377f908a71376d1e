"""JSON files that are never half written and never hold NaN."""

import errno
import fcntl
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO
from uuid import uuid4

from benchmarks.core.checks import first_twice
from resireduce.errors import ConfigError

TEMPORARY = ".resireduce-"
"""Start of temporary names, which are short: that of a file may already be as long as names can be."""
DEEPEST = 100
"""Most levels of lists and mappings in each other in a JSON file: a record has ten, and each level takes a call or two
wherever values are looked at."""
TOO_DEEP = "it is nested too deeply"


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


LOOK_SECONDS = 0.2


def lock(path: Path, what: str, seconds: float = 0.0) -> TextIO:
    """Lock a file until it is closed or this process ends, and write into it which process this is.

    Raises ConfigError, one line that says who works on `what`, if another process has it for longer than `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file, deadline = path.open("a+", encoding="utf-8"), time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.seek(0)
                owner = file.read().strip() or "another process"
                file.close()
                raise ConfigError(f"{what} is in use by {owner}; wait for it, or end that") from None
            time.sleep(LOOK_SECONDS)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            print(f"{path}: this disk has no locks; see that nobody else works on it", file=sys.stderr, flush=True)
            break
    file.truncate(0)
    job = os.environ.get("SLURM_JOB_ID")
    file.write(f"process {os.getpid()} on {os.uname().nodename}{f', job {job}' if job else ''}\n")
    file.flush()
    return file


@contextmanager
def alone(path: Path, waiting: str = "") -> Iterator[None]:
    """Hold a lock on a file within the block; print `waiting` if another process has it."""
    try:
        file = lock(path, "")
    except ConfigError:
        if waiting:
            print(waiting, file=sys.stderr, flush=True)
        file = lock(path, "", math.inf)
    with file:
        yield


def writable(field: str, path: Path) -> None:
    """Make the folder of a file that will be written. Raises ConfigError, one line, if it cannot be written."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{field}: {path} is not a file; give the name of one")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"{field}: {path} cannot be written: {error.strerror}; give a file in a folder of yours"
        ) from None


def load_json(path: Path) -> Any:
    """Read strict JSON. Raises OSError, or ValueError for text that is half written or not strict.

    Not strict are NaN, a duplicate key, a number too large for a float, and more than DEEPEST levels.
    """
    try:
        values = json.loads(read_text(path), parse_constant=_refuse, parse_float=_float, object_pairs_hook=once)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if _is_deep(values):
        raise ValueError(TOO_DEEP)
    return values


def read_text(path: Path) -> str:
    """Return the text of a file. Raises OSError or UnicodeDecodeError if it cannot be read."""
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


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
