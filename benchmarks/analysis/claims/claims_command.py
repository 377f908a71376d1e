"""`python -m benchmarks claims`: what a run's records show about each claim, the paper's and our own."""

import argparse
import sys
from pathlib import Path

from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.claims.print_doubts import uncommitted
from benchmarks.analysis.claims.show import to_json, to_screen
from benchmarks.analysis.labels import printable
from benchmarks.analysis.left_out import left_out
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.one_gpu.gpu_records import REFERENCE, read_devices
from resireduce.errors import ConfigError

LONGEST_NOTE = 1000
"""Most characters of a note."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--run",
        type=Path,
        action="append",
        default=[],
        help="a run's folder, e.g. results/runs/smoke; of several the record of a cell that was measured first counts",
    )
    text = "folder of records of the one-GPU check, with a folder for each GPU (default: %(default)s, as committed)"
    parser.add_argument("--gpus", metavar="DIR", type=Path, default=REFERENCE, help=text)
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON, a list of claims")


def main(args: argparse.Namespace) -> int:
    """Print the ledger and return 0 whatever the verdicts. Raises ConfigError for what is no folder.

    A folder without a run is said to have no results yet.
    """
    runs = [_load(path) for path in args.run]
    for run in runs:
        for note in (*run.notes, *uncommitted(run), *left_out(run)):
            _note(f"{run.name}: {note}")
    if args.gpus != REFERENCE and not args.gpus.is_dir():
        raise ConfigError(f"gpus: {str(args.gpus)!r} is not a folder; give one that holds a folder for each GPU")
    devices = read_devices(args.gpus)
    for device in devices:
        for note in device.notes:
            _note(note)
    found = ledger(*runs, devices=devices)
    print(to_json(found) if args.json else to_screen(found), end="" if args.json else "\n")
    return 0


def _note(text: str) -> None:
    """Print a note on the error stream, cut if a value of a file makes it longer than any that people read."""
    said = printable(text)
    print(f"note: {said if len(said) <= LONGEST_NOTE else f'{said[:LONGEST_NOTE]}...'}", file=sys.stderr)


def _load(path: Path) -> Run:
    if not path.is_dir():
        cure = "give one of results/runs; without --run the claims are held against arithmetic alone"
        raise ConfigError(f"run: {str(path)!r} is not a folder; {cure}")
    try:
        return load_run(path)
    except ConfigError as error:
        _note(f"{error}; nothing of it counts")
        return Run(path, [], {}, {}, [])
