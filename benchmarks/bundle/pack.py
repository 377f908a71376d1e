"""Write a bundle: files in order of their names, with one time for all, so that equal contents make equal zips."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from benchmarks.bundle.contents import Content
from benchmarks.bundle.manifest import NAME, Manifest
from benchmarks.bundle.progress import progress

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip can say."""
CHUNK_BYTES = 1 << 20


def pack(files: Mapping[str, Content], head: Manifest, output: Path) -> Manifest:
    """Write the zip in one move, files one after the other, and return its manifest, which is the last file in it.

    head: the manifest without files.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{output.name}.", suffix=".tmp", dir=output.parent)
    try:
        with os.fdopen(handle, "wb") as file, ZipFile(file, "w", ZIP_DEFLATED) as bundle:
            found = {path: _add(bundle, path, files[path]) for path in progress("packed files", sorted(files))}
            manifest = Manifest(head.run, head.date, head.commit, head.dirty, found)
            _add(bundle, NAME, manifest.to_json().encode())
        os.chmod(temporary, 0o644)
        os.replace(temporary, output)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return manifest


def size_of(content: Content) -> int:
    """Return the bytes of a file or text."""
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _add(bundle: ZipFile, path: str, content: Content) -> tuple[str, int]:
    """Return SHA-256 and bytes of what was written."""
    info = ZipInfo(path, EPOCH)
    info.compress_type, info.external_attr, info.file_size = ZIP_DEFLATED, 0o100644 << 16, size_of(content)
    digest, size = hashlib.sha256(), 0
    with _open(content) as source, bundle.open(info, "w") as target:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def _open(content: Content) -> BinaryIO:
    return content.open("rb") if isinstance(content, Path) else BytesIO(content)
