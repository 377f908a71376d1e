"""Compares files with their published checksums, and fetches them if the user asks. Imports no torch."""

import hashlib
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

from benchmarks.core.checks import allow
from benchmarks.core.files import replacing
from benchmarks.core.progress import Progress
from benchmarks.data.dataset import Dataset, Report, SourceFile
from resireduce.errors import ConfigError

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
    """Compare source files with the published checksums.

    Returns:
        Whether each file has a published checksum and matches it.

    Raises:
        ConfigError: one line with expected and found value, for the first file that differs, unless `unverified`.
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

    Args:
        name: in `benchmarks.core.registry.DATASETS`.
        dataset: says which files are published where.
        folder: made if it does not exist.
        mirror: replaces the beginning of the publisher's addresses.
        unverified: keep a file that differs from the published checksum.
        report: called with lines of progress.

    Raises:
        ConfigError: one line, if there is nothing to fetch, if fetching fails, or if a file is not as published.
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
