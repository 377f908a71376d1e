"""What a user sees of a run: a line for the outcome of each cell, one line for bad input, no chatter of the scheduler.

On one machine cells print their own lines; the output of a cluster's jobs does not reach this screen. Copies of
finished records are deleted.
"""

import logging
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.core.record import try_load
from benchmarks.launching.outcomes import summary
from benchmarks.launching.slurm.working import forget

LOOK_SECONDS = 1.0


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
                    record = try_load(self._run / f"cells/{name}.json")
                    said = summary(record) if record else name
                    print(f"[{self._all - len(self._left)}/{self._all}] {said}", flush=True)

    def _watch(self) -> None:
        pause = threading.Event()
        while self._left and not pause.wait(LOOK_SECONDS):
            self.look()


class FailedTries(logging.Handler):
    """Says in one line why a job of the cluster failed; `quiet: rules` hides what Snakemake says of it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line for a failed job, but for those that ran here, which have reported their own errors."""
        said = record.__dict__
        if getattr(said.get("event"), "name", None) == "JOB_ERROR" and said["rule_msg"]:
            name = Path(said["output"][0]).stem if said["output"] else said["rule_name"]
            print(f"FAILED {name}: {' '.join(said['rule_msg'].split())} (see {', '.join(said['log'])})", flush=True)


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
