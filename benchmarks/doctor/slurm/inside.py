"""The work of a trial's job, on its first node: `python -m benchmarks.doctor.slurm.inside FOLDER`.

Each part writes its report as a JSON file to the folder as soon as it is done, so that a job that is cut short leaves
what it found."""

import json
import math
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.core.devices import DEVICE_VARIABLE, has_nvidia
from benchmarks.core.files import finite, load_json, save_json
from benchmarks.core.run_config import RUNTIMES
from benchmarks.doctor.child import Ended, Job, run_together
from benchmarks.doctor.finding import NOT_RUN, last_words
from benchmarks.doctor.slurm.slurm_cluster import Ask, asking
from benchmarks.doctor.slurm.trial import TRIAL, Trial
from benchmarks.launching.slurm.queue import seconds_left
from benchmarks.launching.slurm.site import Site
from benchmarks.launching.slurm.step import Placement, command
from resireduce.errors import ConfigError

# --- small cells, started as cells are; after a failure, more of them to find why ---


CELL_SECONDS, RECORD_SECONDS = 180.0, 60.0
MODEL, STEPS = "resnet-digits", 2
Run = Callable[..., Ended]
"""How cells are started: `benchmarks.doctor.slurm.inside.run`, or a stand-in."""


@dataclass(frozen=True)
class Small:
    """One cell."""

    backend: str = "torch"
    interface: str | None = None
    """Network device named by the site; None: that of the route."""
    runtime: str = "none"

    @property
    def name(self) -> str:
        """Name of its folder."""
        parts = (self.backend, self.interface, self.runtime if self.runtime != "none" else None)
        return "-".join(part for part in parts if part)


def train_cells(folder: Path, trial: Trial, ranks: Sequence[dict[str, Any]], run: Run) -> Iterator[dict[str, Any]]:
    """Yield the result of each cell.

    Args:
        folder: the job's folder, seen by all nodes.
        trial: the job.
        ranks: the reports of the tasks in its first step.
        run: runs a program.
    """
    first = train(folder, trial, Small(interface=trial.interface), run)
    yield first
    found = trial.interface
    if first["status"] != "ok":
        for device in other_devices(ranks, trial.interface) if trial.nodes > 1 else []:
            second = train(folder, trial, Small(interface=device), run)
            yield second
            if second["status"] == "ok":
                found = device
                break
    if find_spec("horovod") is not None:
        yield train(folder, trial, Small("horovod", found), run)
    if trial.runtime != "none":
        yield train(folder, trial, Small(interface=found, runtime=trial.runtime), run)


def other_devices(ranks: Sequence[dict[str, Any]], named: str | None) -> list[str | None]:
    """Return other values to try for `interface`: None if one was named, and devices that reached the first node.

    All nodes have these devices, and they differ from that of the route.
    """
    followers = [rank for rank in ranks if "reached" in rank]
    devices = [set(rank["devices"]) for rank in ranks if "devices" in rank]
    names = set.intersection(*devices) if devices and followers else set()
    names -= {named} | {rank["route"] for rank in followers}
    good = sorted(name for name in names if all(rank["reached"].get(name) for rank in followers))
    return [*([None] if named else []), *good]


def train(folder: Path, trial: Trial, small: Small, run: Run) -> dict[str, Any]:
    """Train one cell (for Horovod, with one rank on each node) and return its result."""
    each = 1 if small.backend == "horovod" else trial.ranks_per_node
    place = folder / small.name
    record, world_size = place / "record.json", trial.nodes * each
    values = {"model": MODEL, "steps": STEPS, "backend": small.backend, "world_size": world_size, "nodes": trial.nodes}
    save_json(values, place / "cell.json")
    site = Site(
        gres=trial.gres,
        gpus_per_node=trial.gpus,
        ranks_per_node=trial.tasks_per_node,
        cpus_per_rank=1,
        interface=small.interface,
    )
    # JSON is valid YAML.
    save_json({"partitions": {}, "site": asdict(site)}, place / "site.yaml")
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", str(place / "cell.json"), "--output", str(record)]
    line += ["--launcher", "srun", "--site", str(place / "site.yaml"), "--timeout", f"{CELL_SECONDS:g}"]
    if small.runtime != "none":
        image = trial.image or ("cuda12" if has_nvidia() else "cpu")
        line += ["--runtime", small.runtime, "--image", image, "--network", "host"]
    ended = run(line, CELL_SECONDS + RECORD_SECONDS)
    return asdict(small) | {"world_size": world_size} | result(record, ended)


def result(record: Path, ended: Ended) -> dict[str, Any]:
    """Return status and reason, and, from a record, the devices that its ranks trained on."""
    for path in (record, record.with_suffix(".failed.json")):
        if path.exists():
            values = load_json(path)
            facts = values["provenance"]
            found = {"status": values["status"], "reason": values["reason"]}
            return found | {"process_group": facts.get("process_group"), "device_name": facts.get("device")}
    said = "it did not end in time" if ended.code is None else last_words(ended.output)
    return {"status": "error", "reason": said}


RANKS_SECONDS, DOCTOR_SECONDS, PROGRAM_SECONDS = 120.0, 120.0, 20.0
KEPT = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST")
"""Variables of Slurm that Snakemake leaves its jobs; trials use the same, so that what works here works there."""
NODE_CHECKS = ("packages", "home", "disk", "memory", "limits", "shared-memory", "gpu", "driver", "nvml")
"""Checks of a single machine that make sense within the job."""
PARTS = ("node", "ranks", "doctor", "cells")


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a job of Snakemake has."""
    taken = ("SLURM_", "SRUN_", "SBATCH_")
    return {name: value for name, value in given.items() if not name.startswith(taken) or name in KEPT}


def main(folder: Path) -> None:
    """Do all parts in turn."""
    trial = Trial(**load_json(folder / TRIAL))
    save_json(finite(_node()), folder / "node.json")
    ranks = _ranks(folder, trial)
    save_json(ranks, folder / "ranks.json")
    save_json(_doctor(), folder / "doctor.json")
    cells: list[dict[str, Any]] = []
    for cell in train_cells(folder, trial, ranks["ranks"], run):
        cells.append(cell)
        save_json(cells, folder / "cells.json")


def _node() -> dict[str, Any]:
    found = {"host": os.environ.get("SLURMD_NODENAME", socket.gethostname())}
    try:
        left, error = seconds_left(), None
    except ConfigError as refused:
        left, error = math.nan, str(refused)
    limited = math.isfinite(left)
    return found | {
        "seconds_left": left if limited else None,
        "unlimited": math.isinf(left),
        "limit_error": error,
        "containers": look(asking(PROGRAM_SECONDS)),
    }


def run(line: Sequence[str], seconds: float) -> Ended:
    """Run a program for at most `seconds`, with the environment of a job of Snakemake."""
    (ended,) = run_together([Job(line, environment(os.environ))], seconds)
    return ended


def _ranks(folder: Path, trial: Trial) -> dict[str, Any]:
    """Run the step with the doctor's own tasks, and return its reports."""
    meeting = folder / "meeting"
    meeting.mkdir()
    placement = Placement(trial.nodes, trial.tasks_per_node)
    ended = run(command(meeting, placement, 1, "benchmarks.doctor.slurm.trial_rank"), RANKS_SECONDS)
    count = trial.nodes * trial.tasks_per_node
    files = [meeting / f"rank{rank}.json" for rank in range(count)]
    reports = [load_json(file) for file in files if file.exists()]
    said = f"not done in {RANKS_SECONDS:g} s" if ended.code is None else last_words(ended.output) if ended.code else ""
    return {"ranks": reports, "count": count, "error": said or None}


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


def look(ask: Ask, which: Callable[[str], str | None] = shutil.which) -> dict[str, str]:
    """Return the version of each container program on PATH, by name; whether the site's runs cells, a cell shows."""
    answers = {name: ask([name, "--version"]) for name in RUNTIMES[1:] if which(name)}
    return {name: (said.text.strip().splitlines() or [said.error or name])[0] for name, said in answers.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
