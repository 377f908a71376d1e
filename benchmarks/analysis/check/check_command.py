"""`python -m benchmarks check`: does a run still show what the committed measurements show? Imports no torch."""

import argparse
import gc
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

from benchmarks.analysis.check.accept import accept, changes, check_acceptable
from benchmarks.analysis.check.bands import Bands
from benchmarks.analysis.check.check_one_gpu import check_gpu, is_gpu_check
from benchmarks.analysis.check.check_screen import HINT, diff_text, junit, verdict_text
from benchmarks.analysis.check.check_speeds import RECORD, check_speeds
from benchmarks.analysis.check.compare import Outcome, compare, measured_on
from benchmarks.analysis.check.reference import Reference, find_reference, path_of, provenance_of
from benchmarks.analysis.claims.evidence import ambiguous, left_out, mixed
from benchmarks.analysis.labels import say
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import save_bytes, writable
from benchmarks.core.prepared import find_root
from benchmarks.core.progress import counted
from benchmarks.core.provenance import provenance
from benchmarks.core.record import CellResult
from benchmarks.core.run_config import get_cells, write_specs
from benchmarks.launching.outcomes import to_result
from resireduce.errors import ConfigError
from resireduce.scheme import load

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
    """Compare, say what differs, and return the exit status. Raises ConfigError, with one line, for wrong use."""
    _check_options(args)
    if args.run.exists() and args.reference.exists() and args.reference.samefile(args.run):
        say(f"Note: {args.reference} is the run itself, so that nothing can differ")
    if is_gpu_check(args.run):
        if args.accept is not None or args.junit is not None:
            raise ConfigError(
                f"run: {args.run} is a one-GPU check; `gpu-check --summary` makes the reference, no JUnit"
            )
        return check_gpu(args.run, args.reference)
    if (args.run / RECORD).is_file():
        return check_speeds(args.run, path_of(args.reference), args.accept)
    if args.measure is not None:
        measure(args.measure, args.run)
    started = time.monotonic()
    run = load_run(args.run)
    device = measured_on(run)["device"]
    is_there = path_of(args.reference).is_file() or (args.reference.is_dir() and any(args.reference.iterdir()))
    first = args.accept is not None and not is_there
    reference = None if first else find_reference(args.reference, device if isinstance(device, str) else None)
    outcomes = [] if reference is None else compare(reference, run)
    _say(run, reference, outcomes)
    if args.junit is not None:
        save_bytes(junit(outcomes, run.name, time.monotonic() - started), args.junit)
    if args.accept is not None:
        return _accept(args, run, reference, outcomes)
    return 1 if any(one.fails for one in outcomes) else 0


def _check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for wrong options, before any work."""
    if args.accept is not None and not args.accept.strip():
        raise ConfigError("accept: '' is no reason; say why the measurements may change: --accept 'why'")
    if args.accept is None and not args.reference.exists() and not path_of(args.reference).exists():
        raise ConfigError(f"reference: {args.reference} is not there; give one of results/reference, or --accept 'why'")
    if args.junit is not None:
        writable("junit", args.junit)
    if args.measure is not None:
        _check_measuring(args.run, path_of(args.reference), accepting=args.accept is not None)


def _check_measuring(run: Path, reference: Path, accepting: bool) -> None:
    """Raise ConfigError for what would be refused only after minutes of measuring."""
    if run.exists() and not run.is_dir():
        raise ConfigError(f"run: {run} is not a folder; give one that exists, or a new one, for the records")
    if reference.is_file():
        Reference.load(reference)
    elif accepting and not reference.is_dir():
        writable("reference", reference)


def _say(run: Run, reference: Reference | None, outcomes: list[Outcome]) -> None:
    now = measured_on(run)
    if reference is not None:
        say(f"{run.folder} against {reference.path}: {len(reference.rows)} settings")
        say(f"Compared: {'; '.join(Bands.between(reference.provenance, now).words())}")
        for name, then in ((name, reference.provenance.get(name)) for name in ("device", "torch")):
            if now[name] != then:
                say(f"Note: {name} is {now[name]}, that of the reference {then}")
    for note in [*_code_notes(run), *run.notes, *ambiguous(run), *mixed(run), *left_out(run)]:
        say(f"Note: {note}")
    if reference is None:
        return
    text = diff_text(outcomes)
    say("\n".join([*(["", text, "", HINT] if text else []), verdict_text(outcomes)]))


def _code_notes(run: Run) -> list[str]:
    """Return notes on records that other code than this checkout's has measured: they say nothing of this one."""
    known, here = provenance_of(run.results.values()), provenance()
    commits = known["commit"] if isinstance(known["commit"], list) else [known["commit"]]
    others = [str(one) for one in commits if one != here["commit"]] if run.results else []
    more = f" and {len(others) - 1} others" if len(others) > 1 else ""
    found = [f"commit of records is {others[0]}{more}, that of this checkout {here['commit']}"] if others else []
    dirty = sum(one.provenance.get("dirty") is not False for one in run.results.values())
    return found + ([f"{dirty} records are of code with changes that are not committed, or not known"] if dirty else [])


def _accept(args: argparse.Namespace, run: Run, old: Reference | None, outcomes: list[Outcome]) -> int:
    if old is not None and old.path.is_dir():
        raise ConfigError(f"accept: {old.path} is a run; give a file of results/reference as --reference")
    check_acceptable(run)
    if old is not None and not changes(outcomes):
        say(f"Nothing differs: {old.path} stays as it is")
        return 0
    new = accept(run, args.accept, args.reference, old, outcomes)
    say(f"Accepted: {new.path} has {len(new.rows)} settings, and why: {new.history[-1]['reason']}")
    return 0


def measure(config_file: Path, folder: Path) -> None:
    """Write a record for every cell of a config into a run's folder, replacing existing ones.

    Cells with backend local are trained in this process, one after another, as a process for each would take most of
    the time. Their speed and the memory resident in the process therefore mean nothing.
    The others are trained as always, by `python -m benchmarks run`. No cell starts from pretrained weights here,
    because bytes do not depend on them. Raises ConfigError, with one line, for an invalid config.
    """
    config = read_config(config_file)
    cells = get_cells(config)
    write_specs(str(folder), config, cells.values())
    (folder / "logs").mkdir(exist_ok=True)
    for cell in counted("measured cells", cells.values(), len(cells)):
        _measure_one(cell, folder)


def _measure_one(cell: Cell, folder: Path) -> None:
    record, log = folder / f"cells/{cell.name}.json", folder / f"logs/{cell.name}.log"
    for old in (record, record.with_suffix(".failed.json")):
        old.unlink(missing_ok=True)
    with log.open("w", encoding="utf-8") as file:
        if cell.backend == "local":
            with redirect_stderr(file):
                _train_here(cell).save(record)
        else:
            command = [sys.executable, "-m", "benchmarks", "run", "--cell", str(folder / f"specs/{cell.name}.json")]
            subprocess.run([*command, "--output", str(record)], stdout=file, stderr=file, check=False)


def _train_here(cell: Cell) -> CellResult:
    from resireduce.comm.local import LocalCommunicator

    started = time.monotonic()
    outcome = load("benchmarks.training.rank:run_rank")(cell, LocalCommunicator(), None, find_root())
    gc.collect()  # so that leftovers of a cell do not count for the next one
    return to_result(cell, [outcome], time.monotonic() - started, None)
