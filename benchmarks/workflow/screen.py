"""What a user sees: bad input in one line, and with `--quiet progress` none of the scheduler's chatter."""

import logging
import re
import sys
from collections.abc import Collection
from typing import Any, NoReturn

NOISE = (
    "Assuming unrestricted shared",
    "Building DAG of jobs",
    "Using shell",
    "Select jobs to execute",
    "Execute ",
    "Exiting because a job execution failed",
    "Complete log",
    "RuleException:\nCalledProcessError",
    "SLURM run ID: ",
    "No SLURM account given",
    "No account was given",
    "Unable to guess SLURM account",
    "Guessed SLURM account",
    "Trying to restart job",
)
SUBMITTED = re.compile(r"Job \d+ has been submitted")


def hide_noise(logger: logging.Logger, quiet: Collection[Any]) -> None:
    """Take the scheduler's chatter off the screen, not out of the log file, if the user asked for quiet progress."""
    if "progress" not in {str(getattr(item, "name", item)).lower() for item in quiet}:
        return
    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(is_news)


def is_news(record: logging.LogRecord) -> bool:
    """Say whether a message is one that a user waits for."""
    return not str(record.msg).startswith(NOISE) and not SUBMITTED.match(str(record.msg))


def stop(error: object) -> NoReturn:
    """End the run because of bad input: one line, no traceback, exit status 2."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
