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
    """Train and measure a cell; return what its ranks left, and its plan."""
    assert step.cell is not None
    outcomes = launch(step.cell, folder, None, find_root(), seconds)
    said = overall(outcomes)
    ranks = [outcome.to_dict() for outcome in outcomes]
    for rank in ranks:  # the totals suffice here, at a hundredth of the size
        rank.get("memory", {}).pop("moments", None)
    planned = load("benchmarks.training.plan_of_cell:plan_of")(step.cell) if said.status == "ok" else None
    return {"status": said.status, "reason": said.reason, "ranks": ranks, "planned": planned}


def _command(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a command to its end; return its JSON, and its output if it failed."""
    output = folder / "result.json"
    line = [str(output) if part == OUTPUT else part for part in step.command]
    (ended,) = run_together([Job([sys.executable, "-m", *line], os.environ, ROOT)], seconds)
    text = ended.output.strip()[-LOG_CHARACTERS:]
    last = text.splitlines()[-1] if text else "nothing"
    record: dict[str, Any] = {"result": load_json(output) if output.exists() else None, "said": last}
    if ended.code == 0:
        return record | {"status": "ok", "reason": None}
    late = f"not done after {seconds:.0f} s; last it said: {last}"
    status, reason = ("timeout", late) if ended.code is None else ("failed", last)
    return record | {"status": status, "reason": reason, "log": text}


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}, {record['wall_seconds']:.0f} s"
    if record.get("planned"):
        held, planned = record["ranks"][0]["memory"]["total_bytes"], record["planned"]["total"]
        return f"{head}: model states {held:,} bytes, by plan {planned:,}"
    said = record["reason"] or record.get("said")
    return f"{head}: {said}" if said else head


TIMING = tuple(f"benchmarks/micro/{name}.py" for name in ("micro_command", "pace"))
LIMIT_SECONDS = 540.0
FINISHED = ("ok", "oom", "diverged")
"""Statuses that say something about the step; others are worth another try."""
DONE = 3
"""The turn of a step that needs no other try."""
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
        return sorted((step for step in self.steps if self._turn(step) < DONE), key=self._turn)

    def _turn(self, step: Step) -> int:
        record = self.records.get(step.name)
        if record is None:
            return 0
        if record["status"] not in FINISHED:
            return 1
        return DONE if record["code"] == self._codes[step.group] else 2

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
            record |= {"device": self.device.get("uuid"), "code": self._codes[step.group]}
            record |= {"commit": self.source.get("commit")}
            if record["status"] in FINISHED or self._turn(step) < 2:  # a result of other code is better than none
                self.records[step.name] = record
            self._save(step.group)
            self.say(line(record))
            # A signal ended it: the launcher does not raise then, and the remaining steps are not wanted.
            if any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ())):
                return

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
    for path in (folder / f"{group}.json" for group in GROUPS):
        try:
            values = load_json(path)
            if not all({"name", "status", "code", "reason"} <= record.keys() for record in values["cases"]):
                raise ValueError("it is of another kind")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(f"output: {path} cannot be read ({error}); move it away") from None
        yield values
