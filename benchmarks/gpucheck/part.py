"""One part of the check: its cases one after the other, each in fresh processes, into one JSON file. No torch."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.data.prepared import find_root
from benchmarks.files import finite, load_json, save_json
from benchmarks.gpucheck.agreement import compare, plan_of
from benchmarks.gpucheck.cases import LIMIT_SECONDS, Case
from benchmarks.launch import launch, overall
from benchmarks.measure.provenance import provenance
from benchmarks.workflow.content import LIBRARY, TRAINING, content_hash
from resireduce.errors import ConfigError

FINISHED = ("ok", "oom", "diverged")
"""Statuses that say something of the case; it is not run again then."""
MARGIN_SECONDS = 10.0
"""Left at the end of a part, to stop its last case and to write what it left."""


@dataclass
class Part:
    """Part `number` of `count`, and the file that it leaves.

    The file is replaced in one move after every case, so that a part that is killed keeps those that were done. Run
    again it goes on with the others, if code and device are the same.
    """

    number: int
    count: int
    cases: Sequence[Case]
    path: Path
    device: dict[str, Any]
    """What is known of it."""
    say: Callable[[str], None] = print
    """Gets one line for each case."""
    limit_seconds: float = LIMIT_SECONDS
    code: str = field(default_factory=lambda: content_hash((*LIBRARY, *TRAINING)))
    """Hash of all code that a case's result depends on."""
    source: dict[str, Any] = field(default_factory=provenance)
    started: float = field(default_factory=time.monotonic)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run all cases that are not done and have the time."""
        self._load()
        for number, case in enumerate(self.cases, start=1):
            if case.name in self.records:
                self.say(f"{case.name}: done before")
                continue
            left = self.limit_seconds - self.seconds - MARGIN_SECONDS
            if case.estimated_seconds > left:
                reason = f"might take {case.estimated_seconds:.0f} s, of which {max(0.0, left):.0f} s were left"
                self.not_run[case.name] = f"{reason}; run this part again"
                self.say(f"{case.name}: not run: {self.not_run[case.name]}")
            else:
                about = f"case {number} of {len(self.cases)}, about {case.estimated_seconds:.0f} s"
                self.say(f"{case.name}: {about}; the part has run for {self.seconds:.0f} s")
                self.records[case.name] = record = self._run(case, left)
                self.say(line(record))
            self._save()
            if _was_interrupted(self.records.get(case.name, {})):
                return
        self._save()

    @property
    def seconds(self) -> float:
        """How long this part has been running."""
        return time.monotonic() - self.started

    def _run(self, case: Case, seconds: float) -> dict[str, Any]:
        """The record of a case. What goes wrong in it stands there, and does not stop the others."""
        started = time.monotonic()
        record = {"name": case.name, "cell": case.cell.to_dict(), "estimated_seconds": case.estimated_seconds}
        record |= {"device": self.device.get("uuid"), "code": self.code}
        record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            with tempfile.TemporaryDirectory(prefix="resireduce-gpu-check-") as folder:
                outcomes = launch(case.cell, Path(folder), None, find_root(), seconds)
            said = overall(outcomes)
            for outcome in outcomes:  # the totals say enough here, and take a hundredth of the room
                outcome.get("memory", {}).pop("items", None)
            record |= {"status": said["status"], "reason": said["reason"], "ranks": outcomes}
            record["planned"] = planned = plan_of(case.cell, on_gpu=self.device.get("uuid") is not None)
            if said["status"] == "ok":
                record["agreement"] = [compare(outcome, planned) for outcome in outcomes]
        except Exception as error:
            record |= {"status": "error", "reason": f"{type(error).__name__}: {error}"}
        return record | {"wall_seconds": time.monotonic() - started}

    def _load(self) -> None:
        """Take over what an earlier run of this part has finished."""
        wanted = {case.name for case in self.cases}
        same = {"device": self.device.get("uuid"), "code": self.code}
        try:
            self.records = {
                record["name"]: record
                for record in load_json(self.path)["cases"]
                if record["name"] in wanted and record["status"] in FINISHED and same.items() <= record.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(f"output: {self.path} cannot be read ({error}); move it away") from None

    def _save(self) -> None:
        done = [self.records[case.name] for case in self.cases if case.name in self.records]
        values = {
            "part": self.number,
            "parts": self.count,
            "seconds": self.seconds,
            "limit_seconds": self.limit_seconds,
        }
        source = self.source | self.device | {"code": self.code}
        save_json(finite(values | {"provenance": source, "cases": done, "not_run": self.not_run}), self.path)


def _was_interrupted(record: dict[str, Any]) -> bool:
    """Whether a signal ended it, which the launcher keeps to itself: nobody wants the other cases then."""
    return any(rank.get("failure", {}).get("interrupted") for rank in record.get("ranks", ()))


def line(record: dict[str, Any]) -> str:
    """Return one line for the screen."""
    head = f"{record['name']}: {record['status']}"
    if record["status"] != "ok":
        return f"{head}: {record['reason']}"
    first, agrees = record["ranks"][0], all(one["agrees"] for one in record["agreement"])
    said = "as planned" if agrees else "NOT as planned"
    total_bytes = first["memory"]["total_bytes"]
    return (
        f"{head}: model states {total_bytes / 2**20:.1f} MiB, {said}, {first['steps_per_second']:.2f} steps/s, "
        f"{record['wall_seconds']:.0f} s (estimate {record['estimated_seconds']:.0f} s)"
    )
