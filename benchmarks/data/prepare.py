"""Prepares a data set once, atomically, and checks later that it is unchanged. Imports no torch."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.core.files import save_json
from benchmarks.core.prepared import MANIFEST, Prepared, check_prepared, open_prepared
from benchmarks.data.checksums import digest, verify
from benchmarks.data.dataset import Dataset, Report, find_files
from resireduce.errors import ConfigError

PARTIAL, OLD = ".partial", ".old"


def prepare(name: str, dataset: Dataset, source: Path, root: Path, *, unverified: bool, report: Report) -> Prepared:
    """Read a data set's published files and write ROOT/NAME with its manifest, replacing an earlier one.

    It is made in a temporary folder and renamed when it is complete: an error or a kill leaves ROOT/NAME as it was.
    Leftovers of a killed process are deleted; two processes at once are refused.

    Args:
        name: in `benchmarks.core.registry.DATASETS`.
        dataset: reads and writes it.
        source: the folder with its files, or one of the files.
        root: folder of prepared data sets.
        unverified: go on with files that differ from the published checksums; the manifest says so.
        report: called with lines of progress.

    Raises:
        ConfigError: one line, for files that are missing, differ or are damaged, and for a root that is not writable.
    """
    files = find_files(name, dataset, source)
    check_prepared(dataset.needs, root)
    try:
        verified = verify(dataset, files, unverified, report)
        root.mkdir(parents=True, exist_ok=True)
        with _alone(name, root):
            _clear_up(name, root)
            temporary = root / f".{name}.{uuid4().hex}{PARTIAL}"
            temporary.mkdir()  # with the permissions that the umask leaves
            try:
                notes = dataset.prepare(files, temporary, root, report)
                about = {"name": name, "title": dataset.title, "source": str(source.absolute()), "verified": verified}
                save_json(about | notes | _contents(temporary, report), temporary / MANIFEST)
                _move(temporary, root / name)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"data: {name}: {error}") from None
    except OSError as error:
        raise ConfigError(
            f"data: {name} cannot be prepared in {root}: {error}; give room in a folder of yours"
        ) from None
    return open_prepared(name, root)


def damage(name: str, dataset: Dataset, root: Path, report: Report) -> str | None:
    """Say in one line what is wrong with a prepared data set, after reading all of it; None if nothing is."""
    try:
        prepared = open_prepared(name, root)
        digests = prepared.manifest["sha256"]
        for file, expected in digests.items():
            found = digest(prepared.folder / file, "sha256", report)
            if found != expected:
                return f"{prepared.folder / file} is damaged: it has sha256 {found}, prepared was {expected}"
        if set(digests) != set(prepared.manifest["files"]) or _combined(digests) != prepared.hash:
            return f"{prepared.folder / MANIFEST} is damaged: its hash is not that of its files"
    except ConfigError as error:
        return str(error).removeprefix("data: ")
    except (OSError, KeyError, TypeError, AttributeError) as error:
        return f"{root / name} cannot be read ({type(error).__name__}: {error})"
    return dataset.damage(prepared.folder, report)


@contextmanager
def _alone(name: str, root: Path) -> Iterator[None]:
    """Hold a lock that the kernel drops with this process. Raises ConfigError if another one prepares the same."""
    path = root / f".{name}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise FileNotFoundError  # the process that held it has just deleted the file
        except (BlockingIOError, FileNotFoundError):
            raise ConfigError(
                f"data: {name!r} is being prepared in {root} by another process; wait for it, or name another --root"
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _clear_up(name: str, root: Path) -> None:
    """Delete the leftovers of a killed process; put the earlier data set back if nothing replaced it."""
    for old in root.glob(f".{name}.*{OLD}"):
        if not (root / name).exists():
            old.rename(root / name)
    for left in (*root.glob(f".{name}.*{PARTIAL}"), *root.glob(f".{name}.*{OLD}")):
        shutil.rmtree(left, ignore_errors=True)


def _contents(folder: Path, report: Report) -> dict[str, Any]:
    """Describe the files in a folder, flushed to disk: their bytes, their SHA-256, and one hash over all."""
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    digests = {name: digest(folder / name, "sha256", report) for name in names}
    sizes = {name: (folder / name).stat().st_size for name in names}
    return {"hash": _combined(digests), "files": sizes, "sha256": digests}


def _combined(digests: Mapping[str, str]) -> str:
    """Hash the lines that `sha256sum *` would print, so that anybody can check the result."""
    return hashlib.sha256("".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()).hexdigest()


def _move(temporary: Path, folder: Path) -> None:
    """Move a finished folder into place, replacing an old one if there is any."""
    old = temporary.with_suffix(OLD)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
