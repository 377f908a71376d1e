"""`python -m benchmarks verify`: does a bundle hold what it says, and do its records reproduce its tables?"""

import argparse
import shutil
import tempfile
import zlib
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from benchmarks.analysis.bundle.pack import (
    NAME,
    OUTPUTS,
    PROJECT,
    BundleError,
    Manifest,
    differences,
    files_of,
    fresh_report,
    record_problem,
)
from benchmarks.analysis.labels import say
from benchmarks.core.files import file_hash, load_json
from benchmarks.core.paths import ROOT, RUNS
from benchmarks.core.progress import counted
from benchmarks.core.provenance import provenance
from resireduce.errors import ConfigError

# --- Unpack a zip, and compare its files with its manifest ---


MOST_BYTES = 16 * 2**30
"""Most bytes of all unpacked files together."""


def unpack(bundle: ZipFile, folder: Path) -> tuple[Manifest, list[str]]:
    """Write all files below `folder`; return the manifest and a line for each file that differs from it.

    `zipfile` itself makes no links, and writes nothing outside of the folder, whatever a name says. Raises BundleError,
    with one line, for a zip that is damaged or too large, or whose manifest cannot be read.
    """
    entries = bundle.infolist()
    total = sum(entry.file_size for entry in entries)
    if total > min(MOST_BYTES, shutil.disk_usage(tempfile.gettempdir()).free):
        raise BundleError(f"its files have {total:,} bytes unpacked; allowed are {MOST_BYTES:,} and what the disk has")
    if NAME not in bundle.namelist():
        raise BundleError(f"it has no {NAME}")
    for entry in counted("unpacked files", entries, len(entries)):
        try:
            bundle.extract(entry, folder)
        except (BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
            raise BundleError(f"{entry.filename!r} is damaged: {error}") from None
    try:
        values = load_json(folder / NAME)
    except (OSError, ValueError) as error:
        raise BundleError(f"{NAME}: {error}") from None
    manifest = Manifest.from_values(values)
    paths = [path for path in folder.rglob("*") if path.is_file() and path != folder / NAME]
    found = {path.relative_to(folder).as_posix(): (file_hash(path), path.stat().st_size) for path in paths}
    said = manifest.files
    problems = [f"{path}: missing, though the manifest has it" for path in sorted(said.keys() - found.keys())]
    problems += [f"{path}: added, the manifest does not have it" for path in sorted(found.keys() - said.keys())]
    changed = (path for path in sorted(found.keys() & said.keys()) if found[path] != said[path])
    return manifest, [*problems, *(f"{path}: changed, its SHA-256 is not that of the manifest" for path in changed)]


# --- What a bundle rests on, beside what this checkout has ---


UNTOLD = ("LICENSE", "CITATION.cff", "results/reference/")
"""Files of the project whose changes `dirty` does not tell."""


def of_checkout(manifest: Manifest, folder: Path) -> tuple[list[str], list[str]]:
    """Return what is wrong with a bundle's files of the project, and notes on why its tables may differ.

    folder: where the bundle was unpacked. Files that are not this checkout's are wrong if both are of one commit
    without changes.
    """
    here = provenance()
    same = manifest.commit is not None and manifest.commit == here["commit"]
    is_clean = same and not manifest.dirty and not here["dirty"]
    notes = []
    if not same:
        said = f"the bundle was made by commit {manifest.commit}, this checkout is {here['commit']}"
        notes.append(f"{said}; if tables differ, verify with that commit")
    elif not is_clean:
        notes.append("the bundle or this checkout has changes that were not committed")
    paths = [(path, place) for place in (folder, ROOT) for pattern in PROJECT for path in sorted(place.glob(pattern))]
    names = dict.fromkeys(path.relative_to(place).as_posix() for path, place in paths if is_clean or place == folder)
    other = [name for name in names if _bytes(folder / name) != _bytes(ROOT / name)]
    why = f"not that of commit {manifest.commit}, which bundle and checkout are"
    wrong = [f"{name}: {why}" for name in other if is_clean and not name.startswith(UNTOLD)]
    return wrong, [
        *notes,
        *(f"{name} is not this checkout's" for name in other if not is_clean or name.startswith(UNTOLD)),
    ]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


# --- Does a bundle hold what it says, and do its records reproduce its tables ---


MOST_SHOWN = 20


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
            with ZipFile(args.bundle) as bundle:
                manifest, problems = unpack(bundle, Path(folder))
        except (BadZipFile, UnicodeDecodeError) as error:
            return _failed(args.bundle, [f"it is no zip: {error}"])
        except BundleError as error:
            return _failed(args.bundle, [str(error)])
        wrong, notes = of_checkout(manifest, Path(folder))
        more = [f"{len(notes) - MOST_SHOWN} more like these"] if len(notes) > MOST_SHOWN else []
        for note in [*notes[:MOST_SHOWN], *more]:
            say(f"Note: {note}")
        problems += wrong
        run = Path(folder) / RUNS / manifest.run
        paths = sorted((run / "cells").glob("*.json"))
        broken = filter(None, map(record_problem, counted("checked records", paths, len(paths))))
        problems += [problem.replace(f"{run}/", "") for problem in broken]
        problems += differing_tables(run, manifest.run)
    if problems:
        return _failed(args.bundle, problems)
    tables = sum(f"{RUNS}/{manifest.run}/tables/" in path for path in manifest.files)
    made = f"{tables} tables and report.html made again; of figures only the SHA-256"
    print(f"Verified: {args.bundle}: {len(manifest.files)} files, run {manifest.run}, {made}")
    return 0


def differing_tables(run: Path, name: str) -> list[str]:
    """Make all tables from the records again, and return the differing files with their first differing line."""
    if not run.is_dir():
        return [f"{RUNS}/{name}: the run is not there"]
    try:
        with fresh_report(run, name) as report:
            old, new = files_of(run, OUTPUTS), files_of(report, OUTPUTS)
            problems = [f"{path}: no table that this code makes" for path in old.keys() - new.keys()]
            problems += [f"{path}: missing, this code makes it" for path in new.keys() - old.keys()]
            problems += differences(old, new).values()
    except ConfigError as error:
        return [f"tables cannot be made: {error}"]
    return sorted(problems)


def _failed(bundle: Path, problems: list[str]) -> int:
    for problem in problems[:MOST_SHOWN]:
        say(f"DIFFERS: {problem}")
    if len(problems) > MOST_SHOWN:
        print(f"... and {len(problems) - MOST_SHOWN} more")
    print(f"NOT verified: {bundle}: {len(problems)} problem{'s' if len(problems) > 1 else ''}")
    return 1
