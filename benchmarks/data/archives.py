"""Reads members of tar and zip archives without unpacking them, so that no archive decides where files are written."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

MOST_MEMBERS = 100
"""Largest number of members; archives of the data sets have a dozen at most."""
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)


def read_tar(path: Path, wanted: tuple[str, ...], largest: int) -> dict[str, bytes]:
    """Read members of a gzip-compressed tar archive.

    Args:
        path: the archive.
        wanted: full names of members; each must occur once, as an ordinary file.
        largest: most bytes of a member, so that an archive cannot fill the memory.

    Raises:
        ValueError: one line, for an archive that is damaged, has other members, or names that lead outside of it.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for count, member in enumerate(archive):
                _check(path, member.name, member.size, count, largest)
                if member.name not in wanted:
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or member.name in found:
                    raise ValueError(f"{path.name}: {member.name!r} is there twice, or is no ordinary file")
                found[member.name] = content.read()
    except DAMAGED as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    _complete(path, wanted, list(found))
    return found


@contextmanager
def open_zip(path: Path, wanted: tuple[str, ...], largest: int) -> Iterator[dict[str, IO[bytes]]]:
    """Open members of a zip archive for reading, by name, with the arguments of `read_tar`; they are read on demand.

    Raises:
        ValueError: as `read_tar` does, also for damage that is found while a member is read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for count, member in enumerate(archive.infolist()):
                _check(path, member.filename, member.file_size, count, largest)
                if member.filename in wanted and names.count(member.filename) > 1:
                    raise ValueError(f"{path.name}: {member.filename!r} is there twice, or is no ordinary file")
            _complete(path, wanted, names)
            yield {name: archive.open(name) for name in wanted}
    except DAMAGED as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or a password
        raise ValueError(f"{path.name} cannot be read: {error}") from None


def _check(path: Path, name: str, size: int, count: int, largest: int) -> None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        raise ValueError(f"{path.name}: member {name!r} points out of the archive; it is not as published")
    if size > largest:
        raise ValueError(f"{path.name}: member {name!r} has {size:,} bytes, allowed are {largest:,}")
    if count >= MOST_MEMBERS:
        raise ValueError(f"{path.name} has more than {MOST_MEMBERS} members; it is not as published")


def _complete(path: Path, wanted: tuple[str, ...], found: list[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{path.name} has no member {missing[0]!r}; it is not as published")
