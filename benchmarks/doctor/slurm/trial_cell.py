"""Small cells that a trial's job trains with the suite's own launcher; after a failure, more cells to find why."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.core.devices import DEVICE_VARIABLE, has_nvidia
from benchmarks.core.files import load_json, save_json
from benchmarks.doctor.child import Ended
from benchmarks.doctor.known_faults import last_words
from benchmarks.doctor.slurm.trial import Trial
from benchmarks.launching.slurm.site import Site

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
    device: str | None = None
    """The value of RESIREDUCE_DEVICE."""
    runtime: str = "none"

    @property
    def name(self) -> str:
        """Name of its folder."""
        parts = (self.backend, self.interface, self.device, self.runtime if self.runtime != "none" else None)
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
        else:
            if trial.gpus and has_nvidia() and os.environ.get(DEVICE_VARIABLE) != "cpu":
                yield train(folder, trial, Small(interface=trial.interface, device="cpu"), run)
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
    ended = run(line, CELL_SECONDS + RECORD_SECONDS, **({DEVICE_VARIABLE: small.device} if small.device else {}))
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
