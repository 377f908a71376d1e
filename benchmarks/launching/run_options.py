"""What the options of `python -m benchmarks run` ask for, checked."""

import argparse
import math
import os
import time
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.checks import seconds
from benchmarks.core.files import load_json, writable
from benchmarks.core.stop_policy import RECORD_SECONDS, SAVE_EVERY_SECONDS, Limits, checkpoint_folder
from benchmarks.launching.launch import TIMEOUT_SECONDS
from resireduce.errors import ConfigError

SPEC = 'give the JSON of a cell, such as {"model": "vgg-digits"}, or of results/runs/RUN/specs'


def read_cell(path: Path) -> Cell:
    """Return the cell that a file describes. Raises ConfigError, one line, if it cannot be used."""
    try:
        values = load_json(path)
    except OSError as error:
        raise ConfigError(f"cell: {path}: {error.strerror}; {SPEC}") from None
    except ValueError as error:
        raise ConfigError(f"cell: {path} is no JSON: {error}; {SPEC}") from None
    return Cell.from_dict(values)


def check_places(args: argparse.Namespace) -> None:
    """Raise ConfigError, one line, if an output that the options name cannot be written, or is also an input."""
    for name in ("cell", "weights"):
        given = getattr(args, name)
        if given is not None and os.path.realpath(given) == os.path.realpath(args.output):
            raise ConfigError(f"output: {args.output} is the file given as --{name}; give another one")
    writable("output", args.output)
    if args.keep is not None:
        writable("keep", args.keep)
    if args.checkpoints is not None and args.checkpoints.exists() and not args.checkpoints.is_dir():
        raise ConfigError(f"checkpoints: {args.checkpoints} is not a folder; give one, or the name of a new one")


def asked_limits(args: argparse.Namespace, cell: Cell) -> Limits:
    """Return the limits that the options set for stopping and saving; seconds count from now."""
    now = time.time()
    seconds_left = math.inf if args.deadline is None else seconds("deadline", args.deadline) - RECORD_SECONDS
    return Limits(
        ends_at=now + seconds_left if math.isfinite(seconds_left) else None,
        save_every_seconds=SAVE_EVERY_SECONDS
        if args.checkpoint_every is None
        else seconds("checkpoint-every", args.checkpoint_every),
        folder=checkpoint_folder(cell, args.output, args.checkpoints).absolute(),
        started_at=now,
    )


def asked_timeout(args: argparse.Namespace) -> float:
    """Return the seconds after which training counts as hung: a deadline, if given, is the better limit."""
    if args.timeout is not None:
        return seconds("timeout", args.timeout)
    return TIMEOUT_SECONDS if args.deadline is None else math.inf
