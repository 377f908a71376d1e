"""Data sets: the files that they are published as, how these are fetched, checked and prepared. Imports no torch."""

import fcntl
import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

from benchmarks.core.checks import allow
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
    """"md5:" or "sha256:" and hexadecimal digits, or the first of them; None if no publisher states it."""

    def described(self) -> str:
        """Return the name with size and checksum, for messages."""
        known = [f"{self.size:,} bytes" if self.size is not None else "", (self.checksum or "").replace(":", " ", 1)]
        return self.name + (f" ({', '.join(filter(None, known))})" if any(known) else "")


def forms_of(table: str) -> tuple[tuple[SourceFile, ...], ...]:
    """Return the forms in a table, separated by empty lines; each line has a file's name, bytes and checksum.

    A hyphen stands for a value that no publisher states.
    """
    return tuple(tuple(map(_file, form.strip().splitlines())) for form in table.split("\n\n"))


def _file(line: str) -> SourceFile:
    name, size, checksum = line.split()
    return SourceFile(name, None if size == "-" else int(size), None if checksum == "-" else checksum)


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A data set, vocabulary or set of weights that cells can read once it is prepared."""

    title: str
    terms: str
    """Licence, or who allows its use."""
    address: str | None = None
    """Beginning of the publisher's addresses, with the last slash; None: it cannot be fetched without registration."""
    forms: tuple[tuple[SourceFile, ...], ...] = ()
    """Each form is enough by itself. The first is fetched from `address`."""
    folders: tuple[str, ...] = ()
    """Folders below the source that its files may lie in, as archives have them."""
    needs: tuple[str, ...] = ()
    """Names of data sets that must be prepared in the same root first."""

    @abstractmethod
    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Write the prepared files into `target`, an empty folder; return notes for the manifest, such as counts.

        files: published name -> where it is, as `find` returned them. root: folder of prepared data sets, for those in
        `needs`. report: takes lines of progress. Raises ValueError, one line with the file and what is wrong with it.
        """

    def published(self) -> dict[str, SourceFile]:
        """Return all published files, of any form, by name."""
        return {file.name: file for form in self.forms for file in form}

    def find(self, source: Path) -> dict[str, Path] | None:
        """Find the files of one form in a folder, or beside a file: name -> path. None if no form is complete."""
        for form in self.forms:
            for folder in (source, *(source / below for below in self.folders)):
                found = {file.name: folder / file.name for file in form}
                if all(path.is_file() for path in found.values()):
                    return found
        return None

    def damage(self, folder: Path, report: Report) -> str | None:
        """Say in one line what is wrong with the files that the prepared ones refer to; None if nothing is."""
        return None

    def takes(self) -> str:
        """Name the files of every form, for messages."""
        return " | ".join(", ".join(file.name for file in form) for form in self.forms)

    def instructions(self, folder: Path) -> list[str]:
        """Say which files to put where, a line for each form."""
        lines = [f"{self.title}; terms: {self.terms}"]
        for place, form in enumerate(self.forms):
            where = f" (from {self.address})" if place == 0 and self.address else ""
            lines.append(f"  {'or' if place else 'put'} into {folder}{where}:")
            lines += [f"    {file.described()}" for file in form]
        return lines


def find_files(name: str, dataset: Dataset, source: Path) -> dict[str, Path]:
    """Find a data set's files in a folder, or beside a given file. Raises ConfigError, one line, if any is missing."""
    takes = dataset
    if source.is_file() and dataset.forms:
        if source.name not in dataset.published():
            raise ConfigError(f"data: {name!r} is not read from {source.name!r}; allowed: {dataset.takes()}")
        forms = tuple(form for form in dataset.forms if source.name in [file.name for file in form])
        takes, source = replace(dataset, forms=forms), source.parent
    elif not source.is_dir():
        raise ConfigError(f"data: {source} is not there; give the folder or the file that {name!r} is read from")
    if not (found := takes.find(source)):
        raise ConfigError(f"data: {source} has not all files of {name!r}; it takes one of: {dataset.takes()}")
    return found


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, or the error's type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


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
    return None if found.startswith(expected) else f"has {algorithm} {found}, published is {expected}"


def verify(dataset: Dataset, files: Mapping[str, Path], unverified: bool, report: Report) -> bool:
    """Return whether each file has a published checksum and matches it.

    Raises ConfigError, one line with expected and found value, for the first file that differs, unless `unverified`.
    """
    known, sure = dataset.published(), True
    for name, path in files.items():
        published = known.get(name, SourceFile(name))
        differs = difference(path, published, report)
        if differs and not unverified:
            raise ConfigError(f"data: {path} {differs}; get it again, or go on as it is with --unverified")
        if differs or published.checksum is None:
            sure = False
            report(f"{path.name}: {differs or 'no checksum of it is published'}; noted in the manifest")
    return sure


TIMEOUT_SECONDS = 60
SCHEMES = ("https", "http", "file")


def download(
    name: str, dataset: Dataset, folder: Path, *, mirror: str | None, unverified: bool, report: Report
) -> None:
    """Fetch the files of a data set's first form into a folder; those that are already there and right are kept.

    mirror: replaces the beginning of the publisher's addresses. unverified: keep a file that differs from the published
    checksum. Raises ConfigError, one line, if there is nothing to fetch, if fetching fails, or if a file is not as
    published.
    """
    address = mirror or dataset.address
    if not dataset.forms or not address:
        raise ConfigError(f"download: {name!r} is not for free download ({dataset.terms}); name its folder with --from")
    begins = f"an address that begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    allow("mirror", address, address.partition(":")[0].lower() in SCHEMES, begins)
    for file in dataset.forms[0]:
        path = folder / file.name
        if not path.is_file() or difference(path, file, report):
            _fetch(file, f"{address.rstrip('/')}/{quote(file.name)}", path, unverified, report)


def _fetch(file: SourceFile, address: str, path: Path, unverified: bool, report: Report) -> None:
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
            differs = difference(Path(output.name), file, report)
            if differs and not unverified:
                raise ConfigError(f"download: {address} {differs}; try another --mirror, or keep it with --unverified")
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"download: {address} cannot be fetched: {error}; fetch it elsewhere, into {path}") from None


# --- Prepared once, atomically, and checked later ---


PARTIAL, OLD = ".partial", ".old"


def prepare(name: str, dataset: Dataset, source: Path, root: Path, *, unverified: bool, report: Report) -> Prepared:
    """Read a data set's published files and write ROOT/NAME with its manifest, replacing an earlier one.

    It is made in a temporary folder and renamed when it is complete: an error or a kill leaves ROOT/NAME as it was.
    Leftovers of a killed process are deleted; two processes at once are refused. source: the folder with its files, or
    one of the files. unverified: go on with files that differ from the published checksums; the manifest says so.
    Raises ConfigError, one line, for files that are missing, differ or are damaged, and for a root that is read-only.
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
                if (root / name).exists():
                    (root / name).rename(temporary.with_suffix(OLD))
                temporary.rename(root / name)
                shutil.rmtree(temporary.with_suffix(OLD), ignore_errors=True)
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
