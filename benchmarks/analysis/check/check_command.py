"""`python -m benchmarks check`: does a run still show what the committed measurements show? Imports no torch."""

import argparse
import gc
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.analysis.check.compare import (
    SAVINGS,
    TOLD,
    Bands,
    Outcome,
    compare,
    contradicted,
    duplicates,
    measured_on,
)
from benchmarks.analysis.check.reference import (
    QUANTITY_WORDS,
    Reference,
    change_text,
    find_reference,
    path_of,
    provenance_of,
    rows_of,
    setup_problems,
)
from benchmarks.analysis.claims.evidence import doubts, mixed, odd
from benchmarks.analysis.grouping import grouped
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

# --- The findings of a check ---


HEADINGS = {
    "problem": "NOT COMPARED, since there is no valid record",
    "worse": "WORSE than the reference",
    "changed": "CHANGED within the band, on the same machine",
    "new": "NEW, not in the reference",
    "better": "BETTER than the reference",
}
HINT = "To make what is told here the reference: the same command with --accept 'why'"


def diff_text(outcomes: Sequence[Outcome]) -> str:
    """Return everything that differs from the reference, the worst setting first; "" if nothing does."""
    parts = []
    for verdict in TOLD:
        groups = grouped((one.name, one) for one in outcomes if one.verdict == verdict).values()
        chosen = sorted(groups, key=lambda group: -max(one.severity for one in group))
        if chosen:
            lines = [f"{HEADINGS[verdict]}: {len(chosen)}"]
            parts.append("\n".join([*lines, *(line for group in chosen for line in _lines(group))]))
    return "\n\n".join(parts)


def verdict_text(outcomes: Sequence[Outcome]) -> str:
    """Return the last line: how many settings there are, and how many have each verdict."""
    counts = {verdict: len({one.name for one in outcomes if one.verdict == verdict}) for verdict in TOLD}
    words = {"problem": "without a valid record"}
    told = [f"{count} {words.get(verdict, verdict)}" for verdict, count in counts.items() if count]
    total = len({one.name for one in outcomes})
    state = "FAILED" if any(one.fails for one in outcomes) else "PASSED"
    return f"Check {state}: {total} settings, {', '.join(told) or 'all as in the reference'}"


def text_of(outcome: Outcome) -> str:
    """Return the text of an outcome without its label."""
    if outcome.reason or outcome.old is None or outcome.new is None:
        word = "" if outcome.quantity == "record" else f"{QUANTITY_WORDS[outcome.quantity]}: "
        return f"{word}{outcome.reason}"
    return change_text(outcome.quantity, outcome.old, outcome.new)


def _lines(group: Sequence[Outcome]) -> list[str]:
    """Return the lines of a setting: savings first, as they matter most, then the parts."""
    first, *others = sorted(group, key=lambda one: (one.quantity not in SAVINGS, -one.severity))
    return [f"  {first.label}: {text_of(first)}", *(f"    {text_of(one)}" for one in others)]


UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain."""


def junit(outcomes: Sequence[Outcome], run: str, seconds: float) -> bytes:
    """Return a JUnit file: "worse" and "problem" are failures; what could not be compared is skipped."""
    failures, skipped = sum(one.fails for one in outcomes), sum(one.verdict == "skipped" for one in outcomes)
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    counts |= {"time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", {"name": "benchmarks check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _fit(f"check of {run}"), **counts})
    for one in outcomes:
        names = {"classname": _fit(one.name), "name": _fit(f"{one.label}: {QUANTITY_WORDS[one.quantity]}")}
        case = ElementTree.SubElement(suite, "testcase", {**names, "time": "0"})
        text = _fit(f"{one.label}: {text_of(one)}")
        if one.fails:
            ElementTree.SubElement(case, "failure", {"message": text, "type": one.verdict}).text = text
        elif one.verdict == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": text})
        elif one.verdict != "same":
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _fit(text: str) -> str:
    return UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)


# --- Make a run the reference, with a reason ---


MOST_LINES = 200
"""Most lines about changes in one entry of the history; a last line counts the rest."""


def check_acceptable(run: Run) -> None:
    """Raise ConfigError, one line, for a run that is incomplete, ambiguous or mixed."""
    problems = [
        *(f"{hole.name} is {hole.status}" for hole in run.holes.values()),
        *(f"{cell.name} is there twice, also as {name}" for cell, name in duplicates(run)),
        *(f"{cell.name}: {reason}" for cell, reason in contradicted(run)),
        *run.notes,
        *(f"it has {problem}" for problem in setup_problems(run)),
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ConfigError(
            f"accept: {run.folder} cannot be a reference: {problems[0]}{more}; run it to its end first, with one setup"
        )


def accept(run: Run, reason: str, path: Path, old: Reference | None, outcomes: Sequence[Outcome]) -> Reference:
    """Write the run's measurements as the reference and return it; its history gets the reason and the changes.

    Raises ConfigError, with one line, if settings or seeds of the reference are missing.
    """
    lost = [one for one in outcomes if one.quantity == "record" and one.verdict == "problem"]
    if lost:
        raise ConfigError(
            f"accept: {lost[0].label} is in {path} and not in {run.folder}, as are {len(lost) - 1} others; accept a "
            "run of all, or delete the reference to begin anew"
        )
    rows, here = rows_of(run), provenance()
    told = [f"{len(rows)} settings measured for the first time"] if old is None else changes(outcomes)
    entry = {"date": datetime.now(UTC).date().isoformat(), "reason": " ".join(reason.split())}
    history = [
        *(old.history if old else []),
        entry | {name: here[name] for name in ("commit", "dirty")} | {"changes": told},
    ]
    # The file that was read; else the one that `path` names, or cpu.json in that folder.
    target = old.path if old else path / "cpu.json" if path.is_dir() else path_of(path)
    reference = Reference(target, rows, provenance_of(run.results.values()), history)
    reference.save()
    return reference


def changes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for everything that differs from the reference."""
    told = [f"{one.label}: {text_of(one)}" for one in outcomes if one.verdict not in ("same", "skipped")]
    more = [f"and {len(told) - MOST_LINES} more"] if len(told) > MOST_LINES else []
    return [*told[:MOST_LINES], *more]


# --- Does a run still show what the committed measurements show? Imports no torch ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "Exit status: 0 as the reference or better, 1 worse or without valid records, 2 wrong use."
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
    """Raise ConfigError for wrong options, before any work, as measuring takes minutes."""
    file = path_of(args.reference)
    if args.accept is not None and not args.accept.strip():
        raise ConfigError("accept: '' is no reason; say why the measurements may change: --accept 'why'")
    if args.accept is None and not args.reference.exists() and not file.exists():
        raise ConfigError(f"reference: {args.reference} is not there; give one of results/reference, or --accept 'why'")
    if args.junit is not None:
        writable("junit", args.junit)
    if args.measure is None:
        return
    if args.run.exists() and not args.run.is_dir():
        raise ConfigError(f"run: {args.run} is not a folder; give one that exists, or a new one, for the records")
    if file.is_file():
        Reference.load(file)
    elif args.accept is not None and not file.is_dir():
        writable("reference", file)


def _say(run: Run, reference: Reference | None, outcomes: list[Outcome]) -> None:
    now = measured_on(run)
    if reference is not None:
        say(f"{run.folder} against {reference.path}: {len(reference.rows)} settings")
        say(f"Compared: {'; '.join(Bands.between(reference.provenance, now).words())}")
        for name, then in ((name, reference.provenance.get(name)) for name in ("device", "torch")):
            if now[name] != then:
                say(f"Note: {name} is {now[name]}, that of the reference {then}")
    notes = [*_code_notes(run), *run.notes, *doubts(run), *mixed(run), *odd(run)]
    for note in notes:
        say(f"Note: {note}")
    if reference is None:
        return
    text = diff_text(outcomes)
    say("\n".join([*(["", text, "", HINT] if text else []), verdict_text(outcomes)]))


def _code_notes(run: Run) -> list[str]:
    """Return notes on records that other code than this checkout's has measured: they say nothing of this one."""
    sources, here = [one.provenance for one in run.results.values()], provenance()["commit"]
    others = sorted({str(one.get("commit")) for one in sources} - {str(here)})
    more = f" and {len(others) - 1} others" if len(others) > 1 else ""
    return [f"commit of records is {others[0]}{more}, that of this checkout {here}"] if others else []


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
        record = folder / f"cells/{cell.name}.json"
        for old in (record, record.with_suffix(".failed.json")):
            old.unlink(missing_ok=True)
        with (folder / f"logs/{cell.name}.log").open("w", encoding="utf-8") as file:
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
