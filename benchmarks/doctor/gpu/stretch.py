"""One stretch of the check: do steps one after another, with one JSON file per group. Imports no torch.

A stretch continues where earlier ones, whose files are in the same folder, stopped."""

import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.content import LIBRARY, TRAINING, content_hash
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.core.paths import ROOT
from benchmarks.core.prepared import find_root
from benchmarks.core.provenance import provenance
from benchmarks.doctor.child import Job, run_together
from benchmarks.doctor.gpu.steps import CONTRACTS, GROUPS, OUTPUT, Step
from benchmarks.launching.launch import launch
from benchmarks.launching.outcomes import overall
from resireduce.errors import ConfigError
from resireduce.scheme import load

# --- the bytes that a cell measured, beside its plan ---


STATES = ("parameters", "gradients", "residuals", "optimizer_states", "total")
"""States that must be as planned, to the byte."""
BESIDE = ("peak_states", "allocated")
"""Figures that are also compared, with a tolerance."""
ALLOCATED = "allocated"
"""The rung of the ladder that is read at a step boundary, including gradients."""
KNOWN = ("states", "buffers", "workspaces", "rounding")
"""The parts of allocated bytes."""
ALLOCATED_TOLERANCE = 0.01
PEAK_TOLERANCE = 0.05


def disagreement(record: dict[str, Any]) -> str | None:
    """Return where a cell's memory is not as planned, measured of expected; None if all is, or nothing was compared."""
    found = []
    for agreement in record.get("agreement", ()):
        compared = agreement["states"] | {name: one for name, one in agreement.items() if name in BESIDE}
        wrong = {name: one for name, one in compared.items() if not one["agrees"]}
        found += [f"{name} {one['measured']} of {one['expected']}" for name, one in wrong.items()]
    return f"NOT as planned: {', '.join(found)}" if found else None


def compare(outcome: dict[str, Any], planned: dict[str, int | float]) -> dict[str, Any]:
    """Return the agreement of one rank's outcome by name: measured, expected, ratio, and whether they agree.

    `states`: each as planned, to the byte. `peak_states`: at the fullest moment of a step. `allocated`: bytes that the
    allocator has handed out at a step boundary since before the model was built, against the sum of the tensors known
    to be there: the model states on the device, the model's buffers, cuBLAS's workspaces, and the allocator's rounding,
    from its own snapshot. Missing without a GPU.
    """
    memory = outcome["memory"]
    states = {name: _compared(memory[f"{name}_bytes"], planned[name], 0.0) for name in STATES}
    peak = _compared(memory["peak_states_bytes"], planned["peak_states"], PEAK_TOLERANCE)
    found: dict[str, Any] = {"states": states, "peak_states": peak}
    allocated, known = rung_bytes(memory, ALLOCATED), memory.get("difference")
    if allocated is not None and known:
        expected = sum(known[f"{name}_bytes"] for name in KNOWN)
        found["allocated"] = _compared(allocated - known["baseline_bytes"], expected, ALLOCATED_TOLERANCE)
    every = [*states.values(), *(found[name] for name in BESIDE if name in found)]
    return found | {"agrees": all(one["agrees"] for one in every)}


def rung_bytes(memory: dict[str, Any], name: str) -> int | None:
    """Return the bytes of one rung of a rank's ladder; None if it is missing."""
    rungs = (rung for rung in memory.get("ladder") or () if rung.get("name") == name)
    return next((rung.get("bytes") for rung in rungs), None)


def _compared(measured: float, expected: float, tolerance: float) -> dict[str, Any]:
    ratio = measured / expected if expected else None
    agrees = measured == expected or (ratio is not None and abs(ratio - 1) <= tolerance)
    return {"measured": measured, "expected": expected, "ratio": ratio, "agrees": agrees}


# --- plans, made in parallel, so that the GPU need not wait ---


class Plans:
    """The plans of a stretch's cells, which another process makes one after another. No torch is loaded here."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._plans: dict[str, Future[dict[str, Any]]] = {}

    def start(self, cells: Sequence[Cell]) -> None:
        """Start the process, if there is anything to plan."""
        if cells:
            # Not forked: a fork would inherit what this process has.
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
            self._plans = {cell.name: self._pool.submit(_plan, cell) for cell in cells}

    def wait(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """Return the plan of a cell. Raises RuntimeError if there is none, or not within `seconds`."""
        try:
            return self._plans[cell.name].result(seconds)
        except Exception as error:
            raise RuntimeError(f"no plan of {cell.name}: {error!r}; python -m resireduce plan makes one") from None

    def stop(self) -> None:
        """Make no more plans."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _plan(cell: Cell) -> dict[str, Any]:
    planned: dict[str, Any] = load("benchmarks.training.plan_of_cell:plan_of")(cell)
    return planned


def plan_anew(record: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's `record`, from other code or without a plan, with the plan that this code makes.

    Measured values stay unchanged. Imports torch, and takes a few seconds for the largest models.
    """
    planned = _plan(Cell(**record["cell"]))
    return record | {"planned": planned, "agreement": [compare(rank, planned) for rank in record["ranks"]]}


# --- one step ---


LOG_CHARACTERS = 6000
"""Characters kept from the end of a failed command's output."""
FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"':]+/)+""")
"""The folders of an absolute path."""
MOST_TIMES = 4.0
"""A step that takes this many times its estimate on a GPU is stopped as hanging: the others need the time."""


def do(step: Step, plans: Plans, seconds: float, most_times: float = MOST_TIMES) -> dict[str, Any]:
    """Do a step within `seconds` and return its record; only a signal ends more than the step."""
    started = time.monotonic()
    limit = min(seconds, most_times * step.estimated_seconds)
    record: dict[str, Any] = {"name": step.name, "estimated_seconds": step.estimated_seconds}
    record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    record |= {"cell": step.cell.to_dict()} if step.cell else {"command": list(step.command)}
    try:
        with tempfile.TemporaryDirectory(prefix="resireduce-gpu-check-") as folder:
            record |= _train(step, plans, Path(folder), limit) if step.cell else _command(step, Path(folder), limit)
    except Exception as error:
        record |= {"status": "error", "reason": f"{type(error).__name__}: {error}"}
    return without_folders(record | {"wall_seconds": time.monotonic() - started})


def without_folders(value: Any) -> Any:
    """Return a record, or a part of one, in whose texts files are named without the folders of this machine."""
    if isinstance(value, dict):
        return {key: without_folders(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(one) for one in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def _train(step: Step, plans: Plans, folder: Path, seconds: float) -> dict[str, Any]:
    """Train and measure a cell, and compare it with its plan."""
    assert step.cell is not None
    ends_at = time.monotonic() + seconds
    outcomes = launch(step.cell, folder, None, find_root(), seconds)
    said = overall(outcomes)
    ranks = [outcome.to_dict() for outcome in outcomes]
    for rank in ranks:  # the totals suffice here, at a hundredth of the size
        for name in ("items", "moments"):
            rank.get("memory", {}).pop(name, None)
    record: dict[str, Any] = {"status": said.status, "reason": said.reason, "ranks": ranks}
    if said.status == "ok":
        record |= {"planned": None, "agreement": []}
        try:
            record["planned"] = planned = plans.wait(step.cell, ends_at - time.monotonic())
            record["agreement"] = [compare(rank, planned) for rank in ranks]
        except RuntimeError as error:  # the measurement counts without a plan
            record["reason"] = str(error)
    return record


def _command(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a command to its end; return its JSON, and its output if it failed."""
    output = folder / "result.json"
    line = [str(output) if part == OUTPUT else part for part in step.command]
    (ended,) = run_together([Job([sys.executable, "-m", *line], os.environ, ROOT)], seconds)
    record: dict[str, Any] = {"result": load_json(output) if output.exists() else None}
    if ended.code == 0:
        return record | {"status": "ok", "reason": None}
    text = ended.output.strip()[-LOG_CHARACTERS:]
    last = text.splitlines()[-1] if text else f"exit status {ended.code}, and nothing printed"
    timeout = {"status": "timeout", "reason": f"not done after {seconds:.0f} s; last it said: {last}"}
    return record | (timeout if ended.code is None else {"status": "failed", "reason": last}) | {"log": text}


def was_interrupted(record: dict[str, Any]) -> bool:
    """Return whether a signal ended it. The launcher does not raise then, and the remaining steps are not wanted."""
    return any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ()))


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}, {record['wall_seconds']:.0f} s"
    head += f" (estimate {record['estimated_seconds']:.0f} s)"
    if record["status"] != "ok":
        return f"{head}: {record['reason']}"
    if not record.get("agreement"):
        return f"{head}: {record['reason']}" if record["reason"] else head
    total_bytes = record["ranks"][0]["memory"]["total_bytes"]
    return f"{head}: model states {total_bytes / 2**20:.1f} MiB, {disagreement(record) or 'as planned'}"


TIMING = tuple(f"benchmarks/micro/{name}.py" for name in ("micro_command", "pace", "train_on_nodes"))
LIMIT_SECONDS = 540.0
FINISHED = ("ok", "oom", "diverged")
"""Statuses that say something about the step; others are worth another try."""
MARGIN_SECONDS = 10.0
"""Reserved at the end of a stretch to stop its last step and write its results."""


def code_of(group: str) -> str:
    """Return the hash of all code that a group's results depend on."""
    tests = (CONTRACTS.as_posix(), "tests/worlds.py") if group == "contracts" else ()
    return content_hash((*LIBRARY, *TRAINING, *TIMING, *tests))


@dataclass
class Stretch:
    """Do `steps` in `folder`, for at most `seconds`.

    Each group's file is replaced atomically after every step, so that a stretch that is killed keeps its results. Steps
    never tried come first, in their order; then those that failed in an earlier stretch; then those measured by other
    code, whose results stay until there are new ones.
    """

    steps: Sequence[Step]
    folder: Path
    device: dict[str, Any]
    """The facts about the device."""
    seconds: float = LIMIT_SECONDS
    say: Callable[[str], None] = print
    """Receives a line for each step."""
    source: dict[str, Any] = field(default_factory=provenance)
    code: Callable[[str], str] = code_of
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Records of steps, by name."""
    not_run: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the files of earlier stretches."""
        self._codes = {group: self.code(group) for group in GROUPS}
        self.records = {record["name"]: record for values in read_files(self.folder) for record in values["cases"]}
        self._started = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds until the last step must have ended."""
        return self.seconds - MARGIN_SECONDS - (time.monotonic() - self._started)

    def todo(self) -> list[Step]:
        """Return the steps to do, in the order of this stretch."""
        found: tuple[list[Step], ...] = ([], [], [])
        for step in self.steps:
            record = self.records.get(step.name)
            if record is None:
                found[0].append(step)
            elif record["status"] not in FINISHED:
                found[1].append(step)
            elif record["code"] != self._codes[step.group]:
                found[2].append(step)
        return [step for part in found for step in part]

    def run(self) -> None:
        """Do all steps that there is time for."""
        todo, on_gpu = self.todo(), self.device.get("uuid") is not None
        plans = Plans()
        try:
            plans.start([step.cell for step in todo if step.cell])
            for number, step in enumerate(todo, start=1):
                if not self._begin(step, number, len(todo)):
                    continue
                record = do(step, plans, self.left, MOST_TIMES if on_gpu else math.inf)
                self._keep(step, record)
                self.say(line(record))
                if was_interrupted(record):
                    return
        finally:
            plans.stop()

    def _begin(self, step: Step, number: int, count: int) -> bool:
        """Return whether a step can be done now; if not, note the reason."""
        self.not_run.pop(step.name, None)
        if step.estimated_seconds > self.left:
            self.not_run[step.name] = (
                f"might take {step.estimated_seconds:.0f} s, of which {max(0.0, self.left):.0f} s were left; "
                "run the next stretch"
            )
        if step.name in self.not_run:
            self.say(f"{step.name}: not run: {self.not_run[step.name]}")
            self._save(step.group)
            return False
        self.say(f"{step.name}: {number} of {count}, about {step.estimated_seconds:.0f} s; {self.left:.0f} s are left")
        return True

    def _keep(self, step: Step, record: dict[str, Any]) -> None:
        earlier = self.records.get(step.name, {})
        record |= {"device": self.device.get("uuid"), "code": self._codes[step.group]}
        record |= {"commit": self.source.get("commit"), "tries": earlier.get("tries", 0) + 1}
        if record["status"] in FINISHED or earlier.get("status") not in FINISHED:
            self.records[step.name] = record
        else:  # keep a result from other code rather than none
            self.records[step.name] = earlier | {"failed_since": {key: record[key] for key in ("reason", "code")}}
        self._save(step.group)

    def _save(self, group: str) -> None:
        names = [step.name for step in self.steps if step.group == group]
        values = {
            "group": group,
            "provenance": self.source | self.device,
            "cases": [self.records[name] for name in names if name in self.records],
            "not_run": {name: self.not_run[name] for name in names if name in self.not_run},
        }
        save_json(finite(values), self.folder / f"{group}.json")


def read_files(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the files of groups in a folder. Raises ConfigError, with one line, for an unreadable file."""
    for group in GROUPS:
        path = folder / f"{group}.json"
        try:
            values = load_json(path)
            known = {"name", "status", "code", "reason", "date"}
            if values["group"] != group or not all(known <= record.keys() for record in values["cases"]):
                raise ValueError("it is of another kind")
            yield values
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(f"output: {path} cannot be read ({error}); move it away") from None


def schedule(steps: Sequence[Step], seconds: float) -> list[tuple[int, Step]]:
    """Return each step with its estimated stretch, counted from 1. Raises ConfigError if a step does not fit in one."""
    waiting = list(steps)
    found: dict[str, int] = {}
    number = 0
    while waiting:
        number, left, later = number + 1, seconds - MARGIN_SECONDS, list[Step]()
        for step in waiting:
            if step.estimated_seconds <= left:
                found[step.name], left = number, left - step.estimated_seconds
            else:
                later.append(step)
        if len(later) == len(waiting):
            raise ConfigError(f"seconds: {seconds:g} is not enough for {later[0].name}, {later[0].estimated_seconds:g}")
        waiting = later
    return [(found[step.name], step) for step in steps]
