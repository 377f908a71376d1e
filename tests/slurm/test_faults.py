"""A node that crashes and jobs whose time is over, in one run: neither can hide the other."""

import json
import signal
import threading
from pathlib import Path

from benchmarks.core.cell import Cell
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.project import Project
from tests.slurm.watch import Watcher

LONG = Cell(model="vgg-digits", steps=1500, world_size=2)
"""Too long for its first job, of less than a minute, in which one step is made to take `STEP_SECONDS` besides."""
STEP_SECONDS = 15
WIDE = Cell(model="vgg-digits", steps=400, world_size=2, nodes=2)
"""On two nodes, one of which will crash, long before its last step."""


def fields(cell: Cell) -> dict[str, object]:
    return {name: value for name, value in cell.to_dict().items() if name in ("model", "steps", "world_size", "nodes")}


def checkpoint_of(project: Project, cell: Cell) -> Path:
    return project.folder / f"results/runs/mine/checkpoints/{cell.name}/checkpoint.json"


def test_a_crashed_node_and_a_time_limit_cost_no_result(tmp_path: Path, cluster: Cluster) -> None:
    matrix = [fields(cell) for cell in (LONG, WIDE)]
    project = Project.make(tmp_path / "project", cluster, matrix, minutes=1, checkpoint_minutes=0.05)
    with Watcher(project.folder) as watcher:
        running = project.start("--slurm-no-requeue")
        wait_until(checkpoint_of(project, LONG).exists, 90)
        assert watcher.send("mine", LONG.name, signal.SIGSTOP) == LONG.world_size
        threading.Timer(STEP_SECONDS, watcher.send, ("mine", LONG.name, signal.SIGCONT)).start()
        wait_until(checkpoint_of(project, WIDE).exists, 90)
        step = json.loads(checkpoint_of(project, WIDE).read_text())["step"]
        places = project.folder / f"results/runs/mine/working/{WIDE.name}"
        lost = json.loads((places / "rank1.place.json").read_text())["host"]
        cluster.crash(lost)
        assert running.wait(360) == 0, project.screen
    cluster.start(lost)
    long, wide = (project.records()[cell.name] for cell in (LONG, WIDE))
    assert wide.status == long.status == "ok"
    assert wide.provenance["resumed_at_steps"] and wide.provenance["resumed_at_steps"][0] >= step
    assert lost not in wide.provenance["hosts"], "a node that failed is avoided"
    assert long.provenance["resumed_at_steps"], "it went on from where it stopped before its time limit"
    assert "stopped before its deadline" in said(project, LONG)
    assert not watcher.twice
    assert len(watcher.trainings("mine", WIDE.name)) == 2


def said(project: Project, cell: Cell) -> str:
    """All that the logs of a cell's jobs say."""
    logs = (project.folder / "results/slurm-logs/rule_cell").glob(f"mine_{cell.name}/*.log")
    return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
