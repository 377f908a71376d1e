"""Unpack an untrusted zip safely: names that leave the folder, links, bombs and changed bytes are found."""

import shutil
import stat
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from unicodedata import normalize
from zipfile import BadZipFile, ZipFile, ZipInfo

from benchmarks.analysis.bundle.pack import NAME, BundleError, Manifest, copied
from benchmarks.core.checks import first_twice
from benchmarks.core.files import load_json
from benchmarks.core.progress import counted

MOST_FILES = 200_000
MOST_BYTES = 16 * 2**30
"""Most bytes of all unpacked files together."""
MOST_RATIO = 200
"""Most unpacked over packed bytes, for files larger than SMALL_BYTES; records and tables have 3 to 20."""
SMALL_BYTES = 10 * 2**20
ENCRYPTED = 0x1


def check_entries(bundle: ZipFile) -> None:
    """Raise BundleError, with one line, for an entry that must not be unpacked, before anything is written."""
    entries = bundle.infolist()
    if len(entries) > MOST_FILES:
        raise BundleError(f"it has {len(entries):,} files, allowed are {MOST_FILES:,}")
    for entry in entries:
        if problem := _entry_problem(entry):
            raise BundleError(f"{entry.filename[:200]!r} {problem}")
    names = {entry.filename for entry in entries}
    if (twice := first_twice(normalize("NFC", entry.filename).casefold() for entry in entries)) is not None:
        raise BundleError(f"{twice!r} is there twice, if the case of letters does not count, as in some folders")
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    if both := folders & names:
        raise BundleError(f"{min(both)!r} is a file and a folder")
    total = sum(entry.file_size for entry in entries)
    if total > min(MOST_BYTES, shutil.disk_usage(tempfile.gettempdir()).free):
        raise BundleError(f"its files have {total:,} bytes unpacked; allowed are {MOST_BYTES:,} and what the disk has")


def _entry_problem(entry: ZipInfo) -> str | None:
    name, mode = entry.filename, entry.external_attr >> 16
    parts = name.split("/")
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ":" in parts[0]:
        return "is no path in the bundle"
    if any(part in ("", ".", "..") for part in parts):
        return "leaves the bundle, or is a folder"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is a link or a device"
    if entry.flag_bits & ENCRYPTED:
        return "is encrypted"
    if entry.file_size > SMALL_BYTES and entry.file_size > MOST_RATIO * max(entry.compress_size, 1):
        return f"would become {entry.file_size:,} bytes from {entry.compress_size:,}"
    return None


def unpack(bundle: ZipFile, folder: Path) -> tuple[Manifest, list[str]]:
    """Write all files below `folder`; return the manifest and a line for each file that differs from it.

    Raises BundleError, with one line, for entries that must not be unpacked, or if the manifest cannot be read.
    """
    check_entries(bundle)
    found = {}
    for entry in counted("unpacked files", bundle.infolist(), len(bundle.infolist())):
        found[entry.filename] = _extract(bundle, entry, folder / entry.filename)
    if NAME not in found:
        raise BundleError(f"it has no {NAME}")
    del found[NAME]
    try:
        values = load_json(folder / NAME)
    except ValueError as error:
        raise BundleError(f"{NAME}: {error}") from None
    manifest = Manifest.from_values(values)
    return manifest, _compare(manifest.files, found)


def _compare(said: dict[str, tuple[str, int]], found: dict[str, tuple[str, int]]) -> list[str]:
    problems = [f"{path}: missing, though the manifest has it" for path in sorted(said.keys() - found.keys())]
    problems += [f"{path}: added, the manifest does not have it" for path in sorted(found.keys() - said.keys())]
    changed = (path for path in sorted(found.keys() & said.keys()) if found[path] != said[path])
    return [*problems, *(f"{path}: changed, its SHA-256 is not that of the manifest" for path in changed)]


def _extract(bundle: ZipFile, entry: ZipInfo, target: Path) -> tuple[str, int]:
    """Write one file and return its SHA-256 and bytes; it never writes more bytes than the entry states."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with bundle.open(entry) as source, target.open("xb") as file:
            return copied(source, file, most=entry.file_size)
    except BundleError as error:
        raise BundleError(f"{entry.filename!r} {error}") from None
    except (BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BundleError(f"{entry.filename!r} is damaged: {error}") from None
