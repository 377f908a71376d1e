"""What a user sees of a run: a line for the outcome of each cell, one line for bad input, no chatter of the scheduler.

On one machine cells print their own lines; the output of a cluster's jobs does not reach this screen. Copies of
finished records are deleted.
"""

import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.core.record import CellResult, RecordError
from benchmarks.launching.outcomes import summary
from benchmarks.launching.slurm.working import forget

LOOK_SECONDS = 1.0
SBATCH = re.compile(r"SLURM sbatch failed\. The error message was '(.*?)'\.$", re.DOTALL | re.MULTILINE)
STATE = re.compile(r"SLURM status is: '(\w+)'")
"""Patterns of the executor's messages for a job that could not be submitted (SBATCH), and one that failed."""


class Finished:
    """Checks about once a second which cells Snakemake counts as finished, and deletes the copies of their records.

    jobs: by cell, a function that says whether its job is finished. `say`: print a line for each.
    """

    def __init__(self, run: Path, jobs: Mapping[str, Callable[[], bool]], say: bool):
        self._run, self._left, self._say = run, dict(jobs), say
        self._all, self._lock = len(jobs), threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def look(self) -> None:
        """Report the cells that have finished since the last look."""
        with self._lock:
            for name in [name for name, is_finished in self._left.items() if is_finished()]:
                del self._left[name]
                forget([self._run / f"finished/{name}.json"])
                if self._say:
                    print(f"[{self._all - len(self._left)}/{self._all}] {finished_line(self._run, name)}", flush=True)

    def _watch(self) -> None:
        pause = threading.Event()
        while self._left and not pause.wait(LOOK_SECONDS):
            self.look()


class FailedTries(logging.Handler):
    """Finds failed tries of jobs in Snakemake's messages, and says in one line why, and what comes next."""

    def __init__(self, retries: int):
        super().__init__()
        self._retries, self._tries = retries, Counter[int]()
        self._logs: dict[int, int | None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Note the start of a try, print a line for its failure."""
        event, said = getattr(getattr(record, "event", None), "name", None), record.__dict__
        with suppress(KeyError, IndexError):  # the message has the form of another version
            if event == "JOB_INFO":
                self._tries[said["jobid"]] += 1
                self._logs[said["jobid"]] = _written_at(said["log"])
            # Snakemake has no message for jobs that ran here: they have reported their own errors.
            elif event == "JOB_ERROR" and said["rule_msg"]:
                is_new = _written_at(said["log"]) != self._logs.get(said["jobid"])
                print(failed_line(said, self._tries[said["jobid"]], self._retries, is_new), flush=True)


def finished_line(run: Path, name: str) -> str:
    """Return the last line of a cell's log, or else a line from its record."""
    line = last_line(run / f"logs/{name}.log")
    if line.startswith(f"{name}: "):
        return line
    try:
        return summary(CellResult.load(run / f"cells/{name}.json"))
    except RecordError as error:
        return str(error)


def failed_line(said: Mapping[str, Any], tried: int, retries: int, log_is_new: bool) -> str:
    """Return the line on a failed try; `said` has the fields of Snakemake's message, with the logs of rule and job."""
    name = Path(said["output"][0]).stem if said["output"] else said["rule_name"]
    then = "it is tried again" if tried <= retries else "it is not tried again"
    log = next((path for path in said["log"][0 if log_is_new else 1 :]), None)
    reason = _reason(name, str(said["rule_msg"] or ""), last_line(Path(said["log"][0])) if log_is_new else "")
    see = f" (see {_short(log)})" if log else ""
    return f"FAILED {name}, try {tried} of {retries + 1}: {reason}; {then}{see}"


def last_line(path: Path) -> str:
    """Return the last nonblank line of a file, an empty text if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _reason(name: str, message: str, log_line: str) -> str:
    if found := SBATCH.search(message):
        lines = [line.strip() for line in found[1].split("\n") if line.strip()]
        return lines[-1] if lines else "sbatch failed and said nothing"
    state = STATE.search(message)
    parts = [log_line.removeprefix(f"{name}: ")] if log_line else []
    # FAILED only says that the job's command ended with an exit status.
    if state and (state[1] != "FAILED" or not parts):
        parts.append(f"its job was {state[1]}")
    return "; ".join(parts) or " ".join(message.split()) or "its job failed"


def _written_at(logs: Sequence[str]) -> int | None:
    try:
        return Path(logs[0]).stat().st_mtime_ns if logs else None
    except OSError:
        return None


def _short(path: str) -> str:
    with suppress(ValueError):
        return str(Path(path).absolute().relative_to(Path.cwd()))
    return path


NOISE = re.compile(
    r"Assuming unrestricted shared|Building DAG of jobs|Using shell|Select jobs to execute|Execute |Complete log|"
    r"Exiting because a job execution failed|RuleException:\nCalledProcessError|SLURM run ID: |No SLURM account given|"
    r"No account was given|Unable to guess SLURM account|Guessed SLURM account|Trying to restart job|"
    r"Job \d+ has been submitted"
)


def hide_noise(logger: logging.Logger, quiet: Collection[Any]) -> None:
    """Hide the scheduler's chatter on the screen, but not in the log file, if the user asked for quiet progress."""
    if "progress" not in {str(getattr(item, "name", item)).lower() for item in quiet}:
        return
    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(lambda record: not NOISE.match(str(record.msg)))


def stop(error: object) -> NoReturn:
    """End the run because of bad input: one line, no traceback, exit status 2."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
