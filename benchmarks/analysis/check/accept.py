"""Make a run the reference, with a reason."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.analysis.check.check_screen import text_of
from benchmarks.analysis.check.compare import Outcome, contradicted, duplicates
from benchmarks.analysis.check.reference import ONE_OF, Reference, path_of, provenance_of
from benchmarks.analysis.check.reference_rows import rows_of
from benchmarks.analysis.load_run import Run
from benchmarks.core.provenance import provenance
from resireduce.errors import ConfigError

MOST_LINES = 200
"""Most lines about changes in one entry of the history; a last line counts the rest."""


def check_acceptable(run: Run) -> None:
    """Raise ConfigError, one line, for a run that is incomplete, ambiguous or mixed."""
    known = provenance_of(run.results.values())
    several = [name for name in ONE_OF if isinstance(known[name], list)]
    lacking = [name for name in ONE_OF if run.results and not known[name]]
    problems = [
        *(f"{hole.name} is {hole.status}" for hole in run.holes.values()),
        *(f"{cell.name} is there twice, also as {name}" for cell, name in duplicates(run)),
        *(f"{cell.name}: {reason}" for cell, reason in contradicted(run)),
        *run.notes,
        *(f"its records are of several: {name} {known[name]}" for name in several),
        *(f"its records do not say their {name}" for name in lacking),
        *([] if run.results else ["it has no records"]),
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ConfigError(
            f"accept: {run.folder} cannot be a reference: {problems[0]}{more}; run it to its end first, with one setup"
        )


def accept(run: Run, reason: str, path: Path, old: Reference | None, outcomes: Sequence[Outcome]) -> Reference:
    """Write the run's measurements as the reference and return it; its history gets the reason and the changes.

    Raises ConfigError, with one line, as check_acceptable does, and if settings or seeds of the reference are missing.
    """
    check_acceptable(run)
    lost = [one for one in outcomes if one.quantity == "record" and one.verdict == "problem"]
    if lost:
        raise ConfigError(
            f"accept: {lost[0].label} is in {path} and not in {run.folder}, as are {len(lost) - 1} others; accept a "
            "run of all, or delete the reference to begin anew"
        )
    rows = rows_of(run)
    here = provenance()
    entry: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "reason": " ".join(reason.split()),
        "commit": here["commit"],
        "dirty": here["dirty"],
        "changes": [f"{len(rows)} settings measured for the first time"] if old is None else changes(outcomes),
    }
    history = [*(old.history if old else []), entry]
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
