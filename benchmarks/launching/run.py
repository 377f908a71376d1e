"""`python -m benchmarks run`: trains one cell, and always leaves a validated record. Imports no torch."""

import argparse
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.checks import seconds
from benchmarks.core.content import get_pretrained
from benchmarks.core.devices import check_backend, wanted_device
from benchmarks.core.files import load_json, writable
from benchmarks.core.prepared import check_prepared, find_root
from benchmarks.core.record import CellResult
from benchmarks.core.stop_policy import (
    RECORD_SECONDS,
    SAVE_EVERY_SECONDS,
    Limits,
    content_of,
    remove_checkpoint,
    run_folder,
    saved_step,
)
from benchmarks.launching.containers.choose import add_runtime_arguments, asked_runtime
from benchmarks.launching.launch import TIMEOUT_SECONDS, launch
from benchmarks.launching.outcomes import leave, to_result
from benchmarks.launching.processes import die_with_parent, how_ended
from benchmarks.launching.slurm.site import Site, site_file
from benchmarks.launching.slurm.step import Job
from benchmarks.launching.slurm.working import find_kept, working_folder
from resireduce.errors import ConfigError, choose

LAUNCHERS = ("here", "srun")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--cell", type=Path, required=True, help="JSON file that describes the cell")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for its record")
    parser.add_argument("--weights", type=Path, help="pretrained weights (default: made once, in results/cache)")
    root = "folder of prepared data sets (default: $RESIREDUCE_DATA, else data)"
    parser.add_argument("--data", metavar="DIR", type=Path, help=root)
    limit = (
        f"seconds after which training counts as hung, status timeout (default: {TIMEOUT_SECONDS:g}, or the deadline)"
    )
    parser.add_argument("--timeout", metavar="SECONDS", help=limit)
    limit = "seconds from now until the cell must have ended: it saves and stops before; run again, it goes on"
    parser.add_argument("--deadline", metavar="SECONDS", help=limit)
    often = (
        f"seconds between two checkpoints, for a cell that is killed (default: {SAVE_EVERY_SECONDS:g}, or the site's)"
    )
    parser.add_argument("--checkpoint-every", metavar="SECONDS", help=often)
    text = "here: processes of this machine; srun: tasks on the nodes of the Slurm job that this runs in"
    parser.add_argument("--launcher", default="here", help=f"what starts the ranks: {text} (default: %(default)s)")
    parser.add_argument("--site", type=Path, default=site_file(), help="YAML file of the cluster (here: %(default)s)")
    text = (
        "JSON file for a copy of the record, from which it is taken again if the cell was finished but not seen to be"
    )
    parser.add_argument("--keep", metavar="FILE", type=Path, help=text)
    add_runtime_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Return 0 if the record is a result of the cell, 1 if the cell could not be run or is to be resumed."""
    cell = read_cell(args.cell)
    job = _job(args, cell)
    timeout_seconds, limits = asked_timeout(args), asked_limits(args, cell)
    wanted_device()
    runtime = asked_runtime(args)
    image = runtime.facts() if runtime else None
    check_backend(cell.backend, image)
    if args.output.resolve() in {one.resolve() for one in (args.cell, args.weights) if one is not None}:
        raise ConfigError(f"output: {args.output} is given as input too; give another file")
    writable("output", args.output)
    root = find_root(args.data)
    check_prepared(cell.needs, root)
    weights = _weights(cell, args.weights)
    limits = replace(limits, content=content_of(cell, weights, image))
    started = time.monotonic()
    if runtime is not None and limits.folder is not None:
        limits.folder.mkdir(parents=True, exist_ok=True)  # to be bound
    with working_folder(cell, args.output, shared=job is not None) as folder:
        if (kept := find_kept(args.keep, limits.content)) is not None:
            return leave(kept, args.output, note=" (finished before, not trained again)")
        outcomes = launch(cell, folder, weights, root, timeout_seconds, limits, runtime, job)
    result = to_result(cell, outcomes, time.monotonic() - started, weights, image)
    result = _with_origin(result, limits, job)
    status = leave(result, args.output, outcomes[0].baseline_bytes, args.keep)
    if status == 0 and result.status != "timeout":  # with more time, a cell that was too slow can resume
        remove_checkpoint(limits.folder)
    return status


def _with_origin(result: CellResult, limits: Limits, job: Job | None) -> CellResult:
    """Return the result with what it was made from, and in which job; a failure says from which step it may go on."""
    source = {"content": limits.content, "slurm": job.facts() if job else None}
    result = replace(result, provenance=result.provenance | source)
    if result.status == "error" and (step := saved_step(limits.folder)) is not None:
        result = replace(result, reason=f"{result.reason}; run again to go on from step {step}")
    return result


def _job(args: argparse.Namespace, cell: Cell) -> Job | None:
    """Return the Slurm job for the ranks, whose site gives options that are not given; None: ranks are for here."""
    if choose("launcher", args.launcher, LAUNCHERS) != "srun":
        if cell.nodes is not None and cell.nodes > 1:
            cure = "run it on a cluster: snakemake --profile slurm"
            raise ConfigError(f"nodes: {cell.nodes} needs several machines; {cure}")
        return None
    site = Site.load(args.site)
    image = os.path.abspath(args.image) if str(args.image).endswith(".json") else args.image
    job = Job.find(cell, site, image)
    if args.deadline is None and job.deadline_seconds is not None:
        args.deadline = str(max(job.deadline_seconds, RECORD_SECONDS + 1))
    if args.checkpoint_every is None:
        args.checkpoint_every = str(site.checkpoint_minutes * 60)
    return job


def _weights(cell: Cell, given: Path | None) -> Path | None:
    """Return the weights that the cell starts from: those given, or those of its recipe, made now if missing."""
    usual = get_pretrained(cell.model)
    if given is not None:
        if usual is None:
            raise ConfigError(f"weights: {given} is of no use: {cell.model} starts from scratch; leave it out")
        if not given.is_file():
            raise ConfigError(f"weights: {given} is not there; make it with: python -m benchmarks data pretrain")
        return given
    if usual is None:
        return None
    if not Path(usual).is_file():
        arguments = ["-m", "benchmarks", "data", "pretrain", "--model", cell.model, "--output", os.path.abspath(usual)]
        Path(usual).parent.mkdir(parents=True, exist_ok=True)
        if code := subprocess.run([sys.executable, *arguments], check=False, preexec_fn=die_with_parent).returncode:
            raise ConfigError(f"weights: pretraining of {cell.model} {how_ended(code)}; the lines above say why")
    return Path(usual)


SPEC = 'give the JSON of a cell, such as {"model": "vgg-digits"}, or of results/runs/RUN/specs'


def read_cell(path: Path) -> Cell:
    """Return the cell that a file describes. Raises ConfigError, one line, if it cannot be used."""
    try:
        values = load_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cell: {path} is no JSON: {error}; {SPEC}") from None
    return Cell.from_dict(values)


def asked_limits(args: argparse.Namespace, cell: Cell) -> Limits:
    """Return the limits that the options set for stopping and saving; seconds count from now."""
    now = time.time()
    seconds_left = math.inf if args.deadline is None else seconds("deadline", args.deadline) - RECORD_SECONDS
    return Limits(
        ends_at=now + seconds_left if math.isfinite(seconds_left) else None,
        save_every_seconds=SAVE_EVERY_SECONDS
        if args.checkpoint_every is None
        else seconds("checkpoint-every", args.checkpoint_every),
        folder=run_folder(args.output) / "checkpoints" / cell.name,
        started_at=now,
    )


def asked_timeout(args: argparse.Namespace) -> float:
    """Return the seconds after which training counts as hung: a deadline, if given, is the better limit."""
    if args.timeout is not None:
        return seconds("timeout", args.timeout)
    return TIMEOUT_SECONDS if args.deadline is None else math.inf
