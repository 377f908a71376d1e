"""Read a run's folder: what was measured, what is missing and why, and where its records come from."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.sound import of_another_cell, wrong_seconds
from benchmarks.analysis.grouping import grouped
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, try_json
from benchmarks.core.matrix import IMAGE_KEYS, WHOLE, WORDS, expand_parts
from benchmarks.core.progress import Progress, Report
from benchmarks.core.record import STATUSES, CellResult, RecordError, try_load
from benchmarks.core.sample_counts import planned_steps
from resireduce.errors import ConfigError, is_count

# --- A failed cell: whose record it is, and whether it shows that its training ended as it says ---

OUTCOMES = ("diverged", "oom", "timeout")
"""Statuses that say something of the cell itself; the others are mishaps of its run."""
FAILURES = tuple(status for status in STATUSES if status != "ok")


def unproven(record: CellResult) -> Iterator[str]:
    """Yield in one line each why a record does not show that its cell diverged, which decides claims as a metric does.

    It needs what each training leaves that diverged. Of other statuses nothing is asked: they leave claims open.
    """
    yield from of_another_cell(record)
    if not record.provenance.get("device"):
        yield "provenance: device: missing"
    ranks = [rank.get("status") for rank in record.per_rank]
    if len(ranks) != record.cell.world_size or "diverged" not in ranks:
        yield f"per_rank: needs {record.cell.world_size} ranks, and one of them diverged"
    # It ended in the step after its last whole one, or in that one's evaluation.
    step: Any = record.failure.get("step")
    planned, at_least = planned_steps(record.cell)
    if not is_count(step) or step < 1 or step not in (record.steps, record.steps + 1):
        yield f"failure: step: {step!r} is not the one after the {record.steps} steps that it finished"
    if planned is not None and record.steps > planned and not at_least:
        yield f"steps: {record.steps}, its cell and recipe have {planned}"


# --- Read the records of a run; a missing record gives the reason instead ---

BULKY = ("ladder", "sampling", "difference", "phase_seconds")
"""Per-rank fields that no table needs; the record has its own."""

AGAIN = " --force"
"""Added to the command that fills a hole if a damaged record is in the way."""
STRETCHES = 400
"""Number of stretches; a multiple of those that the speed intervals of a single run use."""


@dataclass(frozen=True)
class Hole:
    """A cell of the matrix without a measurement."""

    name: str
    status: str
    reason: str
    command: str
    """The command that fills it, to be run in the root of the project."""
    doubt: str = ""
    """Why its record does not show that it ended so (`unproven`); "" if it does."""
    record: CellResult | None = None
    """What it left, if it diverged."""

    @property
    def has_diverged(self) -> bool:
        """Whether its training is known to have diverged."""
        return self.status == "diverged" and not self.doubt

    @property
    def why(self) -> str:
        """Why there is no result; with a doubt, also why the record does not show that."""
        return f"{self.reason}; not shown: {self.doubt}" if self.doubt else self.reason


def slim(result: CellResult) -> CellResult:
    """Return a record without most of its bytes: each rank's ladder, and the single seconds of more than 400 steps."""
    light = copy(result)  # skips validating it again
    object.__setattr__(light, "step_seconds", thin(result.step_seconds))
    per_rank = [{name: value for name, value in rank.items() if name not in BULKY} for rank in result.per_rank]
    object.__setattr__(light, "per_rank", per_rank)
    return light


def thin(seconds: Sequence[float]) -> list[float]:
    """Return the seconds of all steps, or the means of 400 equal stretches; steps left over at the end are dropped."""
    size = len(seconds) // STRETCHES
    if size < 2:
        return list(seconds)
    return [sum(seconds[size * i : size * (i + 1)]) / size for i in range(STRETCHES)]


def _read(folder: Path, cell: Cell, start: str) -> CellResult | Hole:
    path, log = folder / f"cells/{cell.name}.json", folder / f"logs/{cell.name}.log"

    def hole(status: str, reason: str, of: CellResult | None = None, again: str = "") -> Hole:
        config, target = (shlex.quote(str(one)) for one in (folder / "config.json", path))
        command = f".venv/bin/snakemake {start} --configfile {config}{again} --nolock -- {target}"
        doubt, record = (next(unproven(of), ""), of) if of and of.status == "diverged" else ("", None)
        return Hole(cell.name, status, " ".join(reason.split()), command, doubt, record and slim(record))

    try:
        if path.exists():
            result = CellResult.load(path)
            if result.cell != cell:
                return hole("broken", f"the record is of another cell, {result.cell.name}", again=AGAIN)
            return result if result.status == "ok" else hole(result.status, str(result.reason), result, AGAIN)
    except RecordError as error:
        return hole("broken", str(error).removeprefix(f"{path}: "), again=AGAIN)
    failed = path.with_name(f"{cell.name}.failed.json")
    try:
        failed.stat()  # raises FileNotFoundError if there is none
        record = CellResult.load(failed)
        if record.cell != cell:
            raise RecordError(f"cell: it is of another cell, {record.cell.name}; delete it and run again")
        if record.status == "ok":
            allowed = ", ".join(FAILURES)
            raise RecordError(f"status: 'ok' is not allowed here; allowed: {allowed}; delete it and run again")
        status = "unfinished" if record.failure.get("interrupted") else record.status
        return hole(status, f"{record.reason} (see {log})", record)
    except FileNotFoundError:
        ended = f"stopped before it left a record (see {log})"
        return hole("unfinished", ended) if log.exists() else hole("not run", "not run yet")
    except (OSError, RecordError) as error:
        reason = str(error).removeprefix(f"{failed}: ")
        return hole("error", f"{failed.name} cannot be read: {reason} (see {log})")


@dataclass(frozen=True)
class Part:
    """The cells that a config lists under one name, with words for people (empty where the config has none)."""

    cells: list[Cell]
    title: str = ""
    about: str = ""


@dataclass(frozen=True)
class Run:
    """The records of one folder. Only cells of its config count, so left-overs of an older matrix are ignored."""

    folder: Path
    cells: list[Cell]
    results: dict[Cell, CellResult]
    """Finished cells, status ok."""
    holes: dict[Cell, Hole]
    notes: list[str]
    """What is odd about the folder."""
    parts: dict[str, Part] = field(default_factory=dict)
    """The parts of the run's config that count, by name."""
    doubts: dict[Cell, str] = field(default_factory=dict)
    """How results contradict themselves in what is not kept of them: tables show them, claims do not count them."""
    is_whole: bool = True
    """Whether its config could be read, so that it is known which cells are missing."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name

    @cached_property
    def settings(self) -> dict[Cell, list[CellResult]]:
        """The results of each setting (cells that differ only in their seed), in matrix order."""
        found = self.cells_of.items()
        return {setting: [self.results[cell] for cell in cells if cell in self.results] for setting, cells in found}

    @cached_property
    def cells_of(self) -> dict[Cell, list[Cell]]:
        """The cells of each setting, in matrix order."""
        return grouped((replace(cell, seed=0), cell) for cell in self.cells)


def load_run(folder: Path, say: Report | None = None) -> Run:
    """Read a run. A broken or missing record becomes a hole; ConfigError if folder is no run at all.

    Per-step and per-rank data is reduced to what tables need (`slim`).

    say: receives a progress line every few seconds if reading takes long.
    """
    if not folder.is_dir():
        raise ConfigError(f"run: {str(folder)!r} is not a folder; give one of results/runs")
    if not (folder / "config.json").exists() and not (folder / "cells").is_dir():
        raise ConfigError(f"run: {str(folder)!r} holds no run (no config.json, no cells); give one of results/runs")
    parts, notes = _expected(folder)
    cells = list(dict.fromkeys(cell for part in parts.values() for cell in part.cells))
    config = try_json(folder / "config.json")
    start = "--profile slurm" if isinstance(config, dict) and config.get("site") is not None else "--cores all"
    run = Run(folder, cells, {}, {}, notes, parts, is_whole=not notes)
    progress = Progress(say or (lambda line: None), "read records", len(cells))
    for done, cell in enumerate(cells, start=1):
        found = _read(folder, cell, start)
        if isinstance(found, Hole):
            run.holes[cell] = found
        else:
            run.results[cell] = slim(found)
            if why := wrong_seconds(found):
                run.doubts[cell] = why
        progress.done(done)
    return run


def strays(run: Run) -> Iterator[tuple[Path, CellResult]]:
    """Yield the valid records in files that are not named after any cell of the run; others are skipped."""
    names = {f"{cell.name}.json" for cell in run.cells}
    for path in sorted(run.folder.glob("cells/*.json")):
        if path.name not in names and not path.name.endswith(".failed.json") and (found := try_load(path)):
            yield path, found


def _expected(folder: Path) -> tuple[dict[str, Part], list[str]]:
    """Return the parts of the run's config, or, if it cannot be read, one part with the records' cells and a note."""
    try:
        config = load_json(folder / "config.json")
        matrix = {key: value for key, value in config.items() if key not in ("run", "site", *IMAGE_KEYS)}
        given = matrix.get("parts") or {}
        return {
            name: Part(cells, **{word: str(given.get(name, {}).get(word) or "") for word in WORDS})
            for name, cells in expand_parts(matrix).items()
        }, []
    except (OSError, ValueError, AttributeError) as error:
        note = f"config.json cannot be read ({error}): what is missing is not known."
        cells = [result.cell for result in map(try_load, sorted(folder.glob("cells/*.json"))) if result]
        return {WHOLE: Part(list(dict.fromkeys(cells)))}, [note]


# --- Where the records of a run come from: each fact once, or all its values if the records differ ---

FACTS = {
    "commit": "Commit",
    "dirty": "Uncommitted changes",
    "python": "Python",
    "packages": "Packages",
    "system": "System",
    "cpu": "Processor",
    "cores": "Cores",
    "device": "Device",
    "driver": "Driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "image_digest": "Image",
    "process_group": "Process group",
    "backend": "Backend",
    "horovod": "Horovod",
    "ranks_per_host": "Ranks by host",
    "link_rates": "Links slowed to",
    "threads": "Threads a rank",
    "data_hash": "Data (SHA-256)",
    "weights_hash": "Weights started from (SHA-256)",
    "date": "Measured",
}
SOFTWARE = ("commit", "python", "packages", "device", "driver", "cuda", "nccl", "image_digest")


def provenance_rows(results: Iterable[CellResult]) -> list[tuple[str, list[str]]]:
    """Return (fact, its different values); hashes differ between models, so their entries name the model."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for key, value in result.provenance.items():
            if key in FACTS and value is not None:
                found.setdefault(key, {})[_fact_text(key, value, result)] = None
    if "date" in found:
        found["date"] = dict.fromkeys([f"{min(found['date'])} to {max(found['date'])}"])
    return [(word, list(found[key])) for key, word in FACTS.items() if key in found]


def is_mixed(results: Iterable[CellResult]) -> bool:
    """Say whether the records come from different commits or software versions, which makes them less comparable."""
    return len({str([result.provenance.get(key) for key in SOFTWARE]) for result in results}) > 1


def _fact_text(key: str, value: Any, result: CellResult) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_yes_or_no(item)}" for name, item in value.items())
    return f"{result.cell.model}: {value}" if key.endswith("_hash") else _yes_or_no(value)


def _yes_or_no(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
