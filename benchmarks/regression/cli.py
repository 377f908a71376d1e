"""`python -m benchmarks check`: does a run still show what the committed measurements show? Imports no torch."""

import argparse
import time
from pathlib import Path

from benchmarks.files import save_bytes, writable
from benchmarks.regression.accept import accept, changes, check_acceptable
from benchmarks.regression.bands import Bands
from benchmarks.regression.compare import Outcome, compare
from benchmarks.regression.junit import junit
from benchmarks.regression.reference import Reference, find_reference, path_of, provenance_of
from benchmarks.regression.screen import HINT, diff_text, verdict_text
from benchmarks.report.load import Run, load_run
from resireduce.errors import ConfigError

EPILOG = "Exit status: 0 as the reference or better, 1 worse or without valid records, 2 wrong use."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = EPILOG
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/memory")
    text = "file of committed measurements, folder of such files, or another run's folder"
    parser.add_argument("--reference", required=True, type=Path, help=text)
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the outcome as a JUnit file too")
    text = "make the run the reference, which keeps the reason; with exit status 0"
    parser.add_argument("--accept", metavar="REASON", help=text)
    text = "train the cells of this config first, those of one rank in this process, into the run's folder"
    parser.add_argument("--measure", metavar="CONFIG", type=Path, help=text)


def main(args: argparse.Namespace) -> int:
    """Compare, say what differs, and return the exit status; ConfigError, one line, for wrong use."""
    _check_options(args)
    if args.measure is not None:
        from benchmarks.regression.measure import measure

        measure(args.measure, args.run)
    started = time.monotonic()
    run = load_run(args.run)
    device = provenance_of(run.results.values())["device"]
    first = args.accept is not None and not _exists(args.reference, device)
    reference = None if first else find_reference(args.reference, device if isinstance(device, str) else None)
    outcomes = [] if reference is None else compare(reference, run)
    _say(run, reference, outcomes)
    if args.junit is not None:
        save_bytes(junit(outcomes, run.name, time.monotonic() - started), args.junit)
    if args.accept is not None:
        return _accept(args, run, reference, outcomes)
    return 1 if any(one.fails for one in outcomes) else 0


def _check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError before any work."""
    if args.accept is not None and not args.accept.strip():
        raise ConfigError("accept: '' is no reason; say why the measurements may change: --accept 'why'")
    if args.accept is None and not args.reference.exists() and not path_of(args.reference).exists():
        raise ConfigError(f"reference: {args.reference} is not there; give one of results/reference, or --accept 'why'")
    if args.junit is not None:
        writable("junit", args.junit)


def _exists(path: Path, device: object) -> bool:
    """Whether there is a reference that --accept would replace."""
    return path_of(path).is_file() or (path.is_dir() and any(path.iterdir()))


def _say(run: Run, reference: Reference | None, outcomes: list[Outcome]) -> None:
    if reference is None:
        return
    now = provenance_of(run.results.values())
    print(f"{run.folder} against {reference.path}: {len(reference.rows)} settings")
    print(f"Compared: {'; '.join(Bands.between(reference.provenance, now).words())}")
    for name in ("device", "torch"):
        if now[name] != reference.provenance.get(name):
            print(f"Note: {name} is {now[name]}, that of the reference {reference.provenance.get(name)}")
    for note in run.notes:
        print(f"Note: {note}")
    text = diff_text(outcomes)
    print(*(["", text, "", HINT] if text else []), verdict_text(outcomes), sep="\n" if text else "")


def _accept(args: argparse.Namespace, run: Run, old: Reference | None, outcomes: list[Outcome]) -> int:
    if old is not None and old.path.is_dir():
        raise ConfigError(f"accept: {old.path} is a run; give a file of results/reference as --reference")
    check_acceptable(run, args.accept)
    if old is not None and not changes(outcomes):
        print(f"Nothing differs: {old.path} stays as it is")
        return 0
    new = accept(run, args.accept, args.reference, old, outcomes)
    print(f"Accepted: {new.path} has {len(new.rows)} settings, and why: {new.history[-1]['reason']}")
    return 0
