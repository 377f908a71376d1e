"""One stretch of the check: do steps one after another, with one JSON file per group. Imports no torch.

A stretch continues where earlier ones, whose files are in the same folder, stopped."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.core.content import LIBRARY, TRAINING, content_hash
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.core.paths import ROOT
from benchmarks.core.prepared import find_root
from benchmarks.core.provenance import provenance
from benchmarks.doctor.gpu.steps import CONTRACTS, GROUPS, OUTPUT, Step
from benchmarks.launching.launch import launch
from benchmarks.launching.outcomes import overall
from benchmarks.launching.processes import Job, run_together
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


# --- one step ---


LOG_CHARACTERS = 6000
"""Characters kept from the end of a failed command's output."""
FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"':]+/)+""")
"""The folders of an absolute path."""


def do(step: Step, seconds: float) -> dict[str, Any]:
    """Do a step within `seconds` and return its record; only a signal ends more than the step."""
    started = time.monotonic()
    record: dict[str, Any] = {"name": step.name, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record |= {"cell": step.cell.to_dict()} if step.cell else {"command": list(step.command)}
    try:
        with tempfile.TemporaryDirectory(prefix="resireduce-gpu-check-") as folder:
            record |= _train(step, Path(folder), seconds) if step.cell else _command(step, Path(folder), seconds)
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


def _train(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Train and measure a cell, and compare it with its plan."""
    assert step.cell is not None
    outcomes = launch(step.cell, folder, None, find_root(), seconds)
    said = overall(outcomes)
    ranks = [outcome.to_dict() for outcome in outcomes]
    for rank in ranks:  # the totals suffice here, at a hundredth of the size
        rank.get("memory", {}).pop("moments", None)
    record: dict[str, Any] = {"status": said.status, "reason": said.reason, "ranks": ranks}
    if said.status == "ok":
        planned = load("benchmarks.training.plan_of_cell:plan_of")(step.cell)
        record |= {"planned": planned, "agreement": [compare(rank, planned) for rank in ranks]}
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


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}, {record['wall_seconds']:.0f} s"
    if record["status"] != "ok" or not record.get("agreement"):
        return f"{head}: {record['reason']}" if record["reason"] else head
    total_bytes = record["ranks"][0]["memory"]["total_bytes"]
    return f"{head}: model states {total_bytes / 2**20:.1f} MiB, {disagreement(record) or 'as planned'}"


TIMING = tuple(f"benchmarks/micro/{name}.py" for name in ("micro_command", "pace", "train_on_nodes"))
LIMIT_SECONDS = 540.0
FINISHED = ("ok", "oom", "diverged")
"""Statuses that say something about the step; others are worth another try."""
MARGIN_SECONDS = 10.0
"""Reserved at the end of a stretch to stop its last step and write its results."""
STEP_SECONDS = 360.0
"""Seconds after which a step on a GPU is stopped as hanging: the others need the time."""
NOT_RUN = "no time was left; run the next stretch"


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

    def __post_init__(self) -> None:
        """Read the files of earlier stretches."""
        self._codes = {group: self.code(group) for group in GROUPS}
        self.records = {record["name"]: record for values in read_files(self.folder) for record in values["cases"]}
        self._ends_at = time.monotonic() + self.seconds - MARGIN_SECONDS

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
        todo, most = self.todo(), STEP_SECONDS if self.device.get("uuid") else float("inf")
        for number, step in enumerate(todo, start=1):
            left = self._ends_at - time.monotonic()
            if left <= 0:
                self.say(f"{len(todo) - number + 1} steps: {NOT_RUN}")
                return
            self.say(f"{step.name}: {number} of {len(todo)}; {left:.0f} s are left")
            record = do(step, min(left, most))
            self._keep(step, record)
            self.say(line(record))
            # A signal ended it: the launcher does not raise then, and the remaining steps are not wanted.
            if any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ())):
                return

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
            "not_run": {name: NOT_RUN for name in names if name not in self.records},
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
