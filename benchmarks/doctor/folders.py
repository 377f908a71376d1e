"""Folders that checks look at: whether they can be written, and how much room there is."""

import os
import tempfile
from pathlib import Path


def existing(path: Path) -> Path:
    """Return the folder, or that above it which is there: where it would be made; or the file in the way."""
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def why_not_writable(folder: Path) -> str | None:
    """Try it, since rights do not say all: a mount may be read-only, a quota used up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"doctor")
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_bytes(folder: Path) -> int:
    """Return the room for those who are not root."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
