"""The work of a trial's job, on its first node: `python -m benchmarks.doctor.slurm.inside FOLDER`.

Each part writes its report as a JSON file to the folder as soon as it is done, so that a job that is cut short leaves
what it found."""

import fcntl
import json
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.core.devices import DEVICE_VARIABLE, has_nvidia
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.doctor.child import Ended, Job, run_together
from benchmarks.doctor.finding import NOT_RUN, last_words
from benchmarks.doctor.slurm.trial import LOCK, TRIAL, Trial
from benchmarks.launching.slurm.queue import seconds_left
from benchmarks.launching.slurm.site import Site
from resireduce.errors import ConfigError

DOCTOR_SECONDS, CELL_SECONDS, RECORD_SECONDS = 120.0, 180.0, 60.0
MODEL, STEPS = "resnet-digits", 2
KEPT = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST")
"""Variables of Slurm that Snakemake leaves its jobs; trials use the same, so that what works here works there."""
NODE_CHECKS = ("packages", "home", "disk", "memory", "shared-memory", "gpu", "driver", "nvml")
"""Checks of a single machine that make sense within the job."""
PARTS = ("node", "doctor", "cells")
PLACED = ("process_group", "device", "ranks_per_host", "visible_gpus")
"""What a cell's record says of the place where it trained."""


def main(folder: Path) -> None:
    """Do all parts in turn."""
    trial = Trial(**load_json(folder / TRIAL))
    save_json(finite(_node(folder)), folder / "node.json")
    save_json(_doctor(), folder / "doctor.json")
    cells: list[dict[str, Any]] = []
    for cell in train_cells(folder, trial):
        cells.append(cell)
        save_json(cells, folder / "cells.json")


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a job of Snakemake has."""
    taken = ("SLURM_", "SRUN_", "SBATCH_")
    return {name: value for name, value in given.items() if not name.startswith(taken) or name in KEPT}


def run(line: Sequence[str], seconds: float) -> Ended:
    """Run a program for at most `seconds`, with the environment of a job of Snakemake."""
    (ended,) = run_together([Job(line, environment(os.environ))], seconds)
    return ended


def train_cells(folder: Path, trial: Trial) -> Iterator[dict[str, Any]]:
    """Yield the result of each small cell, which is started as cells are."""
    yield train(folder, trial, "torch", "none")
    if find_spec("horovod") is not None:
        yield train(folder, trial, "horovod", "none")
    if trial.runtime != "none":
        yield train(folder, trial, "torch", trial.runtime)


def train(folder: Path, trial: Trial, backend: str, runtime: str) -> dict[str, Any]:
    """Train one cell (for Horovod, with one rank on each node) and return its result."""
    each = 1 if backend == "horovod" else trial.ranks_per_node
    place, world_size = folder / f"{backend}-{runtime}", trial.nodes * each
    record = place / "record.json"
    values = {"model": MODEL, "steps": STEPS, "backend": backend, "world_size": world_size, "nodes": trial.nodes}
    save_json(values, place / "cell.json")
    site = Site(
        gres=trial.gres,
        gpus_per_node=trial.gpus,
        ranks_per_node=trial.tasks_per_node,
        cpus_per_rank=1,
        interface=trial.interface,
    )
    # JSON is valid YAML.
    save_json({"partitions": {}, "site": asdict(site)}, place / "site.yaml")
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", str(place / "cell.json"), "--output", str(record)]
    line += ["--launcher", "srun", "--site", str(place / "site.yaml"), "--timeout", f"{CELL_SECONDS:g}"]
    if runtime != "none":
        image = trial.image or ("cuda12" if has_nvidia() else "cpu")
        line += ["--runtime", runtime, "--image", image, "--network", "host"]
    ended = run(line, CELL_SECONDS + RECORD_SECONDS)
    return {"backend": backend, "runtime": runtime, "world_size": world_size} | result(record, ended)


def result(record: Path, ended: Ended) -> dict[str, Any]:
    """Return status and reason, and, from a record, where its ranks trained."""
    for path in (record, record.with_suffix(".failed.json")):
        if path.exists():
            values = load_json(path)
            placed = {name: values["provenance"].get(name) for name in PLACED}
            return {"status": values["status"], "reason": values["reason"], **placed}
    said = "it did not end in time" if ended.code is None else last_words(ended.output)
    return {"status": "error", "reason": said}


def _node(folder: Path) -> dict[str, Any]:
    found = {"host": os.environ.get("SLURMD_NODENAME", socket.gethostname()), "locked": is_locked(folder / LOCK)}
    try:
        left, error = seconds_left(), None
    except ConfigError as refused:
        left, error = math.nan, str(refused)
    limited = math.isfinite(left)
    return found | {"seconds_left": left if limited else None, "unlimited": math.isinf(left), "limit_error": error}


def is_locked(path: Path) -> bool:
    """Return whether a lock (flock) of another process is held here, as those of working folders of cells must be."""
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _doctor() -> list[dict[str, Any]]:
    """Return the single-machine doctor's findings. With torch for CUDA, a requested GPU must be there."""
    line = [sys.executable, "-m", "benchmarks", "doctor", "--json", "--only", ",".join(NODE_CHECKS)]
    line += ["--gpu"] if os.environ.get("CUDA_VISIBLE_DEVICES") and _has_cuda() else []
    ended = run(line, DOCTOR_SECONDS)
    try:
        # Its lines, on the error stream, precede the JSON.
        return list(json.JSONDecoder().raw_decode(ended.output, ended.output.index("{\n"))[0]["findings"])
    except (ValueError, KeyError):
        how = "did not end in time" if ended.code is None else last_words(ended.output)
        return [{"check": "node", "status": NOT_RUN, "detail": f"the doctor of one machine: {how}", "cure": None}]


def _has_cuda() -> bool:
    """Return whether torch is built for CUDA, by its version ("+cpu" marks CPU packages), without loading it."""
    try:
        return not version("torch").endswith("+cpu") and os.environ.get(DEVICE_VARIABLE) != "cpu"
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
