"""Are these the published bytes? Sizes and checksums of source files. Imports no torch."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from benchmarks.data.dataset import Dataset, Report, SourceFile
from benchmarks.data.progress import Progress
from resireduce.errors import ConfigError

CHUNK_BYTES = 1 << 20


def digest(path: Path, algorithm: str, report: Report) -> str:
    """Hash a file, with lines of progress: hexadecimal digits. `algorithm` is a name that hashlib knows."""
    progress, done = Progress(report, f"checking {path.name}, bytes", path.stat().st_size), 0
    value = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value.update(chunk)
            done += len(chunk)
            progress.done(done)
    return value.hexdigest()


def difference(path: Path, published: SourceFile, report: Report) -> str | None:
    """Say how a file differs from the published one, expected and found, in half a line; None: in nothing known."""
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
        Whether each of them has one, and agrees with it.

    Raises:
        ConfigError: one line with what was expected and found, for the first that differs, unless `unverified`.
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
