"""`python -m benchmarks verify`: does a bundle hold what it says, and do its records reproduce its tables?"""

import argparse
import tempfile
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from benchmarks.analysis.bundle.contents import record_problem
from benchmarks.analysis.bundle.notes import notes, wrong_inputs
from benchmarks.analysis.bundle.pack import BundleError
from benchmarks.analysis.bundle.stage import OUTPUTS, differences, files_of, fresh_report
from benchmarks.analysis.bundle.unpack import unpack
from benchmarks.analysis.labels import say
from benchmarks.core.paths import RUNS
from benchmarks.core.progress import counted
from resireduce.errors import ConfigError

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
        _note(notes(manifest, Path(folder)))
        problems += wrong_inputs(manifest, Path(folder))
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


def _note(found: list[str]) -> None:
    more = [f"{len(found) - MOST_SHOWN} more like these"] if len(found) > MOST_SHOWN else []
    for note in [*found[:MOST_SHOWN], *more]:
        say(f"Note: {note}")


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
