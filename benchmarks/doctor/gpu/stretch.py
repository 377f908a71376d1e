"""One stretch of the check: do steps one after another, with one JSON file per group. Imports no torch.

A stretch continues where earlier ones, whose files are in the same folder, stopped.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.core.content import LIBRARY, TRAINING, content_hash
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.core.provenance import provenance
from benchmarks.doctor.gpu.plans import Plans
from benchmarks.doctor.gpu.steps import CONTRACTS, GROUPS, Step
from benchmarks.doctor.gpu.work import MOST_TIMES, do, line, was_interrupted
from resireduce.errors import ConfigError

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
        with tempfile.TemporaryDirectory(prefix="resireduce-plans-") as folder:
            plans = Plans(Path(folder))
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
