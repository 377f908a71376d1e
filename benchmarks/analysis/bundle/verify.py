"""`python -m benchmarks verify`: does a bundle hold what it says, and do its records reproduce its tables?"""

import argparse
import re
import tempfile
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from benchmarks.analysis.bundle.pack import FORMAT, NAME, OUTPUTS, PROJECT, files_of, fresh_report, record_problem
from benchmarks.analysis.labels import say
from benchmarks.core.files import file_hash, load_json
from benchmarks.core.paths import ROOT, RUNS
from benchmarks.core.progress import counted
from benchmarks.core.provenance import provenance
from benchmarks.core.run_config import get_run_name
from resireduce.errors import ConfigError

MOST_BYTES = 16 * 2**30
"""Most bytes of all unpacked files together."""
PICTURES = (".png", ".svg", ".pdf")
"""Pictures depend on the versions of the drawing libraries, also inside the page; all else is text from the records."""
PICTURE = re.compile("<svg.*?</svg>")
DAMAGE = (BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError)
MOST_SHOWN, WIDTH = 20, 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "Exit status: 0 verified, 1 something differs, 2 wrong use."
    parser.add_argument("bundle", type=Path, help="a zip that `make bundle` made")


def main(args: argparse.Namespace) -> int:
    """Say what differs, and return the exit status. Raises ConfigError, with one line, if there is no such file."""
    if not args.bundle.is_file():
        raise ConfigError(f"bundle: {args.bundle} is not a file; give a zip that `make bundle` made")
    with tempfile.TemporaryDirectory(prefix="resireduce-verify-") as folder:
        try:
            manifest = unpack(args.bundle, Path(folder))
            problems = [*differing_files(manifest, Path(folder)), *other_inputs(manifest, Path(folder))]
            problems += [*differing_records(Path(folder) / RUNS / manifest["run"], manifest["run"])]
        except DAMAGE as error:
            problems = [f"it cannot be read: {type(error).__name__}: {error}"]
    for problem in problems[:MOST_SHOWN]:
        say(f"DIFFERS: {problem}")
    if problems:
        print(f"NOT verified: {args.bundle}: {len(problems)} problem{'s' if len(problems) > 1 else ''}")
        return 1
    made = "its tables and report.html made again; of figures only the SHA-256"
    print(f"Verified: {args.bundle}: {len(manifest['files'])} files, run {manifest['run']}, {made}")
    return 0


def unpack(path: Path, folder: Path) -> dict[str, Any]:
    """Write all files of a zip below `folder`, and return its manifest. Raises an error for one that is damaged.

    `zipfile` itself makes no links, and writes nothing outside of the folder, whatever a name says.
    """
    with ZipFile(path) as bundle:
        entries = bundle.infolist()
        if (total := sum(entry.file_size for entry in entries)) > MOST_BYTES:
            raise ValueError(f"its files have {total:,} bytes unpacked; allowed are {MOST_BYTES:,}")
        for entry in counted("unpacked files", entries, len(entries)):
            bundle.extract(entry, folder)
    manifest: dict[str, Any] = load_json(folder / NAME)
    if manifest["format"] != FORMAT:
        raise ValueError(f"{NAME}: this code reads format {FORMAT}")
    get_run_name(manifest)
    return manifest


def differing_files(manifest: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield a line for each file that is not as the manifest says."""
    said = {path: one["sha256"] for path, one in manifest["files"].items()}
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    found = {name: file_hash(path) for name, path in paths.items() if name != NAME}
    for name in sorted(said.keys() | found.keys()):
        if name not in found:
            yield f"{name}: missing, though the manifest has it"
        elif name not in said:
            yield f"{name}: added, the manifest does not have it"
        elif found[name] != said[name]:
            yield f"{name}: changed, its SHA-256 is not that of the manifest"


def other_inputs(manifest: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield the claims, numbers and versions that are not this checkout's, where both are of one commit unchanged."""
    commit, here = manifest["commit"], provenance()
    if commit is None or commit != here["commit"] or manifest["dirty"] or here["dirty"]:
        where = f"commit {commit}{' with changes' * bool(manifest['dirty'])}, this checkout is {here['commit']}"
        changed = " with changes" * bool(here["dirty"])
        say(f"Note: the bundle was made by {where}{changed}; if tables differ, verify with that commit")
        return
    roots = (folder, ROOT)
    names = {path.relative_to(root) for root in roots for pattern in PROJECT for path in root.glob(pattern)}
    for name in sorted(names):
        if len({(root / name).read_bytes() if (root / name).is_file() else None for root in roots}) > 1:
            yield f"{name}: not that of commit {commit}, which bundle and checkout are"


def differing_records(run: Path, name: str) -> Iterator[str]:
    """Yield invalid records, and tables and page that are not as these records make them, in their first such line."""
    paths = sorted((run / "cells").glob("*.json"))
    broken = [*filter(None, map(record_problem, counted("checked records", paths, len(paths))))]
    yield from (problem.replace(f"{run}/", "") for problem in broken)
    with fresh_report(run, name) as report:
        old, new = files_of(run, OUTPUTS), files_of(report, OUTPUTS)
        yield from (f"{path}: no table that this code makes" for path in sorted(old.keys() - new.keys()))
        yield from (f"{path}: missing, this code makes it" for path in sorted(new.keys() - old.keys()))
        both = (path for path in sorted(old.keys() & new.keys()) if not path.endswith(PICTURES))
        yield from filter(None, (first_difference(path, old[path], new[path]) for path in both))


def first_difference(name: str, old: Path, new: Path) -> str | None:
    """Return the first line in which two files differ; None if they are equal, apart from the pictures of a page."""
    texts = [path.read_bytes().decode(errors="backslashreplace") for path in (old, new)]
    if name.endswith(".html"):
        texts = [PICTURE.sub("<svg>", text) for text in texts]
    for number, (was, now) in enumerate(zip_longest(*(text.split("\n") for text in texts)), start=1):
        if was != now:
            return f"{name}, line {number}:\n    bundle:  {was!r:.{WIDTH}}\n    records: {now!r:.{WIDTH}}"
    return None
