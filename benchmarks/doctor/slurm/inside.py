"""What a trial's job does, on its first node: `python -m benchmarks.doctor.slurm.inside FOLDER`.

Each part leaves its report as a JSON file in the folder as soon as it is done, so that a job that ends in the midst of
it has said what it could.
"""

import json
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.cluster.job import seconds_left
from benchmarks.cluster.placement import Placement
from benchmarks.cluster.site import Site
from benchmarks.cluster.step import command
from benchmarks.doctor.child import Ended, Job, run_together
from benchmarks.doctor.finding import NOT_RUN
from benchmarks.doctor.known import last_words
from benchmarks.doctor.slurm.containers import look
from benchmarks.doctor.slurm.programs import asking
from benchmarks.doctor.slurm.trial import TRIAL, Trial
from benchmarks.files import finite, load_json, save_json
from benchmarks.runtimes.options import has_nvidia
from benchmarks.training.devices import DEVICE_VARIABLE
from resireduce.errors import ConfigError

RANKS_SECONDS, CELL_SECONDS, DOCTOR_SECONDS, PROGRAM_SECONDS = 120.0, 180.0, 120.0, 20.0
KEPT = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST")
"""Of Slurm's variables what Snakemake leaves its jobs: what works here is to work there."""
NODE_CHECKS = ("packages", "home", "disk", "memory", "limits", "shared-memory", "gpu", "driver", "nvml")
"""Checks of one machine that make sense within the job."""
MODEL, STEPS = "resnet-digits", 2
PARTS = ("node", "ranks", "doctor", "cells")


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a job of Snakemake has of an environment."""
    taken = ("SLURM_", "SRUN_", "SBATCH_")
    return {name: value for name, value in given.items() if not name.startswith(taken) or name in KEPT}


def main(folder: Path) -> None:
    """Do all parts."""
    trial = Trial(**load_json(folder / TRIAL))
    save_json(finite(_node()), folder / "node.json")
    ranks = _ranks(folder, trial)
    save_json(ranks, folder / "ranks.json")
    save_json(_doctor(), folder / "doctor.json")
    cells: list[dict[str, Any]] = []
    for cell in _cells(folder, trial, ranks["ranks"]):
        cells.append(cell)
        save_json(cells, folder / "cells.json")


def _node() -> dict[str, Any]:
    found = {"host": os.environ.get("SLURMD_NODENAME", socket.gethostname()), "python": sys.executable}
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


def _run(line: list[str], seconds: float, **more: str) -> Ended:
    (ended,) = run_together([Job(line, environment(os.environ) | more)], seconds)
    return ended


def _ranks(folder: Path, trial: Trial) -> dict[str, Any]:
    """The step of the doctor's own tasks."""
    meeting = folder / "meeting"
    meeting.mkdir()
    placement = Placement(trial.nodes, trial.tasks_per_node)
    ended = _run(command(meeting, placement, 1, "benchmarks.doctor.slurm.rank"), RANKS_SECONDS)
    count = trial.nodes * trial.tasks_per_node
    files = [meeting / f"rank{rank}.json" for rank in range(count)]
    reports = [load_json(file) for file in files if file.exists()]
    said = f"not done in {RANKS_SECONDS:g} s" if ended.code is None else last_words(ended.output) if ended.code else ""
    return {"ranks": reports, "count": count, "error": said or None}


def _doctor() -> list[dict[str, Any]]:
    """The findings of the doctor of one machine. With torch for CUDA a GPU that is asked for must be there."""
    line = [sys.executable, "-m", "benchmarks", "doctor", "--json", "--only", ",".join(NODE_CHECKS)]
    line += ["--gpu"] if os.environ.get("CUDA_VISIBLE_DEVICES") and _has_cuda() else []
    ended = _run(line, DOCTOR_SECONDS)
    try:
        # Its lines, on the error stream, come before.
        return list(json.JSONDecoder().raw_decode(ended.output, ended.output.index("{\n"))[0]["findings"])
    except (ValueError, KeyError):
        how = "did not end in time" if ended.code is None else last_words(ended.output)
        return [{"check": "node", "status": NOT_RUN, "detail": f"the doctor of one machine: {how}", "cure": None}]


def _has_cuda() -> bool:
    """Whether torch is built for CUDA, by its version, as packages for CPUs are marked; it is not loaded."""
    try:
        return not version("torch").endswith("+cpu") and os.environ.get(DEVICE_VARIABLE) != "cpu"
    except PackageNotFoundError:
        return False


def _cells(folder: Path, trial: Trial, ranks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Train small cells by the suite's own launcher, and where one fails those that tell why."""
    first = _cell(folder, trial, "torch", interface=trial.interface)
    yield first
    found = trial.interface
    if first["status"] != "ok":
        for device in other_devices(ranks) if trial.nodes > 1 else []:
            second = _cell(folder, trial, "torch", interface=device)
            yield second
            if second["status"] == "ok":
                found = device
                break
        else:
            if trial.gpus and has_nvidia() and os.environ.get(DEVICE_VARIABLE) != "cpu":
                yield _cell(folder, trial, "torch", interface=trial.interface, device="cpu")
    if find_spec("horovod") is not None:
        yield _cell(folder, trial, "horovod", interface=found, one_each=True)
    if trial.runtime != "none":
        yield _cell(folder, trial, "torch", interface=found, runtime=trial.runtime)


def other_devices(ranks: list[dict[str, Any]]) -> list[str]:
    """Return network devices that all nodes have, by which the first one was reached, beside that of the route."""
    followers = [rank for rank in ranks if "reached" in rank]
    devices = [set(rank["devices"]) for rank in ranks if "devices" in rank]
    names = set.intersection(*devices) if devices and followers else set()
    good = [name for name in names if all(rank["reached"].get(name) for rank in followers)]
    return sorted(name for name in good if name not in {rank["route"] for rank in followers})


def _cell(
    folder: Path,
    trial: Trial,
    backend: str,
    interface: str | None,
    one_each: bool = False,
    device: str | None = None,
    runtime: str = "none",
) -> dict[str, Any]:
    """Train one; what came of it."""
    each = 1 if one_each else trial.ranks_per_node
    name = "-".join(filter(None, (backend, interface, device, runtime if runtime != "none" else None)))
    place = folder / name
    place.mkdir(exist_ok=True)
    values = {"model": MODEL, "steps": STEPS, "backend": backend, "world_size": trial.nodes * each}
    save_json(values | {"nodes": trial.nodes}, place / "cell.json")
    site = Site(
        gres=trial.gres,
        gpus_per_node=trial.gpus,
        ranks_per_node=trial.tasks_per_node,
        cpus_per_rank=1,
        interface=interface,
    )
    # JSON is YAML.
    save_json({"partitions": {}, "site": asdict(site)}, place / "site.yaml")
    record = place / "record.json"
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", str(place / "cell.json"), "--output", str(record)]
    line += ["--launcher", "srun", "--site", str(place / "site.yaml"), "--timeout", f"{CELL_SECONDS:g}"]
    if runtime != "none":
        image = trial.image or ("cuda12" if has_nvidia() else "cpu")
        line += ["--runtime", runtime, "--image", image, "--network", "host"]
    ended = _run(line, CELL_SECONDS + 60, **({DEVICE_VARIABLE: device} if device else {}))
    return {
        "backend": backend,
        "interface": interface,
        "device": device,
        "runtime": runtime,
        "world_size": trial.nodes * each,
        **_result(record, ended),
    }


def _result(record: Path, ended: Ended) -> dict[str, Any]:
    """Status and reason, and of a record what its ranks trained on."""
    for path in (record, record.with_suffix(".failed.json")):
        if path.exists():
            values = load_json(path)
            facts = values["provenance"]
            return {
                "status": values["status"],
                "reason": values["reason"],
                "process_group": facts.get("process_group"),
                "device_name": facts.get("device"),
            }
    said = "it did not end in time" if ended.code is None else last_words(ended.output)
    return {"status": "error", "reason": said}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
