"""Data sets: the files that they are published as, how these are fetched, checked and prepared. Imports no torch."""

import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

from benchmarks.core.files import replacing, save_json
from benchmarks.core.prepared import MANIFEST, Prepared, check_prepared, open_prepared
from benchmarks.core.progress import Progress, Report
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class SourceFile:
    """One published file."""

    name: str
    size: int | None = None
    """Bytes; None if no publisher states them."""
    checksum: str | None = None
    """"md5:" or "sha256:" and hexadecimal digits; None if no publisher states it."""

    def described(self) -> str:
        """Return the name with size and checksum, for messages."""
        known = [f"{self.size:,} bytes" if self.size is not None else "", (self.checksum or "").replace(":", " ", 1)]
        return self.name + (f" ({', '.join(filter(None, known))})" if any(known) else "")


def files_of(table: str) -> tuple[SourceFile, ...]:
    """Return the files in a table: each line has a name, bytes and checksum; a hyphen is for what nobody states."""
    found = []
    for line in table.strip().splitlines():
        name, size, checksum = line.split()
        found.append(SourceFile(name, None if size == "-" else int(size), None if checksum == "-" else checksum))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A data set, vocabulary or set of weights that cells can read once it is prepared."""

    title: str
    terms: str
    """Licence, or who allows its use."""
    address: str | None = None
    """Beginning of the publisher's addresses, with the last slash; None: it cannot be fetched without registration."""
    files: tuple[SourceFile, ...] = ()
    """The published files, which nothing else may stand for."""
    needs: tuple[str, ...] = ()
    """Names of data sets that must be prepared in the same root first."""

    @abstractmethod
    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write the prepared files into `target`, an empty folder; return notes for the manifest, such as counts.

        source: folder of the published files, which have been checked. root: folder of prepared data sets, for those
        in `needs`. report: takes lines of progress. Raises ValueError, one line with what is wrong and where.
        """

    def missing(self, source: Path) -> list[str]:
        """Return the names of what a folder with the published files lacks."""
        return [file.name for file in self.files if not (source / file.name).is_file()]

    def damage(self, folder: Path, report: Report) -> str | None:
        """Say in one line what is wrong with the files that the prepared ones refer to; None if nothing is."""
        return None

    def instructions(self, folder: Path) -> list[str]:
        """Say which files to put where."""
        where = f" (from {self.address})" if self.address else ""
        lines = [f"{self.title}; terms: {self.terms}", f"  put into {folder}{where}:"]
        return lines + [f"    {file.described()}" for file in self.files]


# --- Checksums and downloads ---

CHUNK_BYTES = 1 << 20


def digest(path: Path, algorithm: str, report: Report) -> str:
    """Return a file's hash in hexadecimal digits; `algorithm` is hashlib's name, `report` takes lines of progress."""
    progress, done = Progress(report, f"checking {path.name}, bytes", path.stat().st_size), 0
    value = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value.update(chunk)
            done += len(chunk)
            progress.done(done)
    return value.hexdigest()


def difference(path: Path, published: SourceFile, report: Report) -> str | None:
    """Say how a file differs from the published one, expected and found, in half a line; None if it does not."""
    size = path.stat().st_size
    if published.size is not None and size != published.size:
        return f"has {size:,} bytes, published are {published.size:,}"
    if published.checksum is None:
        return None
    algorithm, _, expected = published.checksum.partition(":")
    found = digest(path, algorithm, report)
    return None if found == expected else f"has {algorithm} {found}, published is {expected}"


def verify(dataset: Dataset, source: Path, report: Report) -> None:
    """Raise ConfigError, one line with expected and found value, for the first file that is not the published one."""
    for file in dataset.files:
        if differs := difference(source / file.name, file, report):
            raise ConfigError(f"data: {source / file.name} {differs}; get it again")
        if file.checksum is None:
            report(f"{file.name}: no checksum of it is published")


TIMEOUT_SECONDS = 60


def download(name: str, dataset: Dataset, folder: Path, report: Report) -> None:
    """Fetch the files of a data set into a folder; those that are already there and right are kept.

    Raises ConfigError, one line, if there is nothing to fetch, if fetching fails, or if a file is not as published.
    """
    if not dataset.address:
        raise ConfigError(f"download: {name!r} is not for free download ({dataset.terms}); name its folder with --from")
    for file in dataset.files:
        path = folder / file.name
        if not path.is_file() or difference(path, file, report):
            _fetch(file, f"{dataset.address}{quote(file.name)}", path, report)


def _fetch(file: SourceFile, address: str, path: Path, report: Report) -> None:
    """Fetch one file under a temporary name, check it, and rename it."""
    report(f"fetching {address}")
    progress, done = Progress(report, f"fetching {file.name}, bytes", file.size), 0
    try:
        request = Request(address, headers={"User-Agent": "resireduce-benchmarks"})
        with replacing(path) as output, urlopen(request, timeout=TIMEOUT_SECONDS) as source:
            while chunk := source.read(CHUNK_BYTES):
                done += output.write(chunk)
                progress.done(done)
            promised = source.headers.get("Content-Length", done)
            if done != int(promised):
                raise OSError(f"it ended after {done:,} of {promised} bytes")
            output.flush()
            if differs := difference(Path(output.name), file, report):
                raise OSError(f"it {differs}")
    except (OSError, ValueError, HTTPException) as error:
        raise ConfigError(f"download: {address} cannot be fetched: {error}; fetch it elsewhere, into {path}") from None


# --- Prepared once, atomically, and checked later ---


def prepare(name: str, dataset: Dataset, source: Path, root: Path, report: Report) -> Prepared:
    """Read a data set's published files in the folder `source`; write ROOT/NAME with its manifest over an earlier one.

    It is made in a hidden folder and renamed when it is complete: an error leaves ROOT/NAME as it was, and a kill the
    hidden folder too. Raises ConfigError, one line, for files that are missing or not as published, and for a root that
    is read-only.
    """
    if missing := dataset.missing(source):
        raise ConfigError(f"data: {source} has no {missing[0]}, which {name!r} is read from; name another --from")
    check_prepared(dataset.needs, root)
    temporary, old = (root / f".{name}.{uuid4().hex}.{kind}" for kind in ("partial", "old"))
    try:
        verify(dataset, source, report)
        temporary.mkdir(parents=True)  # with the permissions that the umask leaves
        try:
            notes = dataset.prepare(source, temporary, root, report)
            about = {"name": name, "title": dataset.title, "source": str(source.absolute())}
            save_json(about | notes | _contents(temporary, report), temporary / MANIFEST)
            if (root / name).exists():
                (root / name).rename(old)
            temporary.rename(root / name)
            shutil.rmtree(old, ignore_errors=True)
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


def _contents(folder: Path, report: Report) -> dict[str, Any]:
    """Describe the files in a folder: their bytes, their SHA-256, and one hash over all."""
    names = sorted(path.name for path in folder.iterdir())
    digests = {name: digest(folder / name, "sha256", report) for name in names}
    sizes = {name: (folder / name).stat().st_size for name in names}
    return {"hash": _combined(digests), "files": sizes, "sha256": digests}


def _combined(digests: Mapping[str, str]) -> str:
    """Hash the lines that `sha256sum *` would print, so that anybody can check the result."""
    return hashlib.sha256("".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()).hexdigest()
