"""Fetch published files, if the user asks for it. Cells never do. Imports no torch."""

import os
import tempfile
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

from benchmarks.data.checksums import CHUNK_BYTES, difference
from benchmarks.data.dataset import Dataset, Report, SourceFile
from benchmarks.data.progress import Progress
from resireduce.errors import ConfigError

TIMEOUT_SECONDS = 60
SCHEMES = ("https", "http", "file")


def download(
    name: str, dataset: Dataset, folder: Path, *, mirror: str | None, unverified: bool, report: Report
) -> None:
    """Fetch the files of a data set's first form into a folder; those that are there and right are left.

    Args:
        name: in `benchmarks.data.DATASETS`.
        dataset: says what is published where.
        folder: is made if need be.
        mirror: takes the place of the beginning of the publisher's addresses.
        unverified: keep a file that differs from the published checksum.
        report: called with lines of progress.

    Raises:
        ConfigError: one line, if there is nothing to fetch, if it cannot be fetched, or if it is not as published.
    """
    address = mirror or dataset.address
    if not dataset.forms or not address:
        raise ConfigError(f"download: {name!r} is not for free download ({dataset.terms}); name its folder with --from")
    if address.partition(":")[0].lower() not in SCHEMES:
        allowed = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(f"mirror: {address!r} is not allowed; give an address that begins with one of {allowed}")
    for file in dataset.forms[0]:
        path = folder / file.name
        if not path.is_file() or difference(path, file, report):
            _fetch(file, f"{address.rstrip('/')}/{quote(file.name)}", path, unverified, report)


def _fetch(file: SourceFile, address: str, path: Path, unverified: bool, report: Report) -> None:
    """Fetch one file under a temporary name, check it, and rename it."""
    report(f"fetching {address}")
    progress, done = Progress(report, f"fetching {file.name}, bytes", file.size), 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=path.parent)
        try:
            request = Request(address, headers={"User-Agent": "resireduce-benchmarks"})
            with os.fdopen(handle, "wb") as output, urlopen(request, timeout=TIMEOUT_SECONDS) as source:
                while chunk := source.read(CHUNK_BYTES):
                    done += output.write(chunk)
                    progress.done(done)
                promised = source.headers.get("Content-Length", done)
            if done != int(promised):
                raise OSError(f"it ended after {done:,} of {promised} bytes")
            differs = difference(Path(temporary), file, report)
            if differs and not unverified:
                raise ConfigError(f"download: {address} {differs}; try another --mirror, or keep it with --unverified")
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"download: {address} cannot be fetched: {error}; fetch it elsewhere, into {path}") from None
