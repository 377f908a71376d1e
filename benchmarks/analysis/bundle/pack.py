"""Write a bundle and its manifest. Files are sorted by name and share one time stamp, so equal contents make equal
zips."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Self
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from benchmarks.analysis.bundle.contents import Content
from benchmarks.core.files import replacing
from benchmarks.core.progress import counted
from benchmarks.core.run_config import RUN_NAME

NAME = "manifest.json"
FORMAT = 1


class BundleError(ValueError):
    """A bundle whose contents are not what it says they are."""


@dataclass(frozen=True)
class Manifest:
    """The description that a bundle gives of itself."""

    run: str
    """Name of the run's folder in results/runs."""
    date: str
    """The day on which it was made, such as 2026-01-31."""
    commit: str | None
    dirty: bool | None
    files: dict[str, tuple[str, int]]
    """SHA-256 and bytes of each file except the manifest, by its path in the bundle."""

    def to_json(self) -> str:
        """Return the text of the manifest file."""
        files = {path: {"sha256": digest, "bytes": size} for path, (digest, size) in sorted(self.files.items())}
        head = {"format": FORMAT, "run": self.run, "date": self.date, "commit": self.commit, "dirty": self.dirty}
        return json.dumps({**head, "files": files}, indent=1) + "\n"

    @classmethod
    def from_values(cls, values: Any) -> Self:
        """Read the values of a manifest file. Raises BundleError, with one line."""
        if not isinstance(values, dict) or values.get("format") is True or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, dict) else None
            raise BundleError(f"{NAME}: format {found!r} cannot be read; this code reads {FORMAT}")
        if not isinstance(values.get("run"), str) or not RUN_NAME.fullmatch(values["run"]):
            raise BundleError(f"{NAME}: run: {str(values.get('run'))[:120]!r} is no name of a run")
        for name, kinds in {"date": str, "commit": str | None, "dirty": bool | None}.items():
            if not isinstance(values.get(name), kinds):
                raise BundleError(f"{NAME}: {name}: {str(values.get(name))[:120]!r} is not allowed")
        try:
            files = {str(path): (str(one["sha256"]), int(one["bytes"])) for path, one in values["files"].items()}
            return cls(values["run"], values["date"], values["commit"], values["dirty"], files)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise BundleError(f"{NAME}: {type(error).__name__}: {error}; it is incomplete") from None


EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can store."""
CHUNK_BYTES = 1 << 20


def pack(files: Mapping[str, Content], head: Manifest, output: Path) -> Manifest:
    """Write the zip atomically, file by file, and return its manifest, which is the last file in it.

    head: the manifest without files.
    """
    with replacing(output) as file, ZipFile(file, "w", ZIP_DEFLATED) as bundle:
        in_order = counted("packed files", sorted(files), len(files))
        manifest = replace(head, files={path: _add(bundle, path, files[path]) for path in in_order})
        _add(bundle, NAME, manifest.to_json().encode())
    return manifest


def size_of(content: Content) -> int:
    """Return the size of a file or text in bytes."""
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _add(bundle: ZipFile, path: str, content: Content) -> tuple[str, int]:
    """Return SHA-256 and bytes of the added content."""
    info = ZipInfo(path, EPOCH)
    info.compress_type, info.external_attr, info.file_size = ZIP_DEFLATED, 0o100644 << 16, size_of(content)
    opened = content.open("rb") if isinstance(content, Path) else BytesIO(content)
    with opened as source, bundle.open(info, "w") as target:
        return copied(source, target)


def copied(source: IO[bytes], target: IO[bytes], most: float = math.inf) -> tuple[str, int]:
    """Copy a file and return its SHA-256 and bytes. Raises BundleError if there are more than `most` bytes."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        size += len(chunk)
        if size > most:
            raise BundleError("is larger than it says")
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest(), size
