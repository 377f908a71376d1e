"""Everything that can go wrong, in one run of twelve cells; its tables are those of a run in which nothing did."""

import csv
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.core.cell import Cell
from tests.slurm.cluster import wait_until
from tests.slurm.conftest import Clusters
from tests.slurm.project import Project
from tests.slurm.watch import Training, Watcher

pytestmark = pytest.mark.full
STEPS = 400
LONG = Cell(model="vgg-digits", steps=2400)
"""Longer than a minute, its first time limit."""
MATRIX = [
    {"model": "vgg-digits", "steps": LONG.steps},
    {"model": "vgg-digits", "steps": STEPS, "world_size": 1, "scheme": ["baseline", "w", "2d", "w+2d"]},
    {"model": "vgg-digits", "steps": STEPS, "scheme": ["baseline", "w", "w+2d"], "gradients": ["kept", "streamed"]},
    {"model": "vgg-digits", "steps": STEPS, "nodes": 2},
    {"model": "vgg-digits", "steps": STEPS, "world_size": 4},
]
CELLS = 13
AT_ONCE = ("--jobs", "4")
"""More on two cores, and none would be done within a minute."""
DISK_BYTES = 600 * 2**20


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder on a small disk, mounted before the cluster starts, which sees it then."""
    folder = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def project(disk: Path, clusters: Clusters) -> Project:
    """Return the project on the small disk, after an undisturbed run called calm."""
    project = Project.make(disk / "project", clusters(), MATRIX, minutes=1, checkpoint_minutes=0.05)
    assert project.start(*AT_ONCE, run="calm").wait(900) == 0, project.screen
    assert len(project.records("calm")) == CELLS
    return project


class Story:
    """The disturbed run, one fault after the other."""

    def __init__(self, project: Project, watcher: Watcher):
        self.project, self.cluster, self.watcher = project, project.cluster, watcher
        self.finished: dict[str, bytes] = {}
        """Records as they were when each of their cells was first seen to be finished."""
        self.hit: set[str] = set()

    def until(self, condition: Callable[[], object], seconds: float = 240) -> None:
        """Wait; what finishes meanwhile is noted."""
        wait_until(lambda: self.note() or condition(), seconds)

    def note(self) -> None:
        cells = self.project.folder / "results/runs/mine/cells"
        for file in cells.glob("*.json") if cells.exists() else []:
            if not file.stem.endswith(".failed") and file.stem not in self.finished:
                self.finished[file.stem] = file.read_bytes()

    def victim(self) -> Training:
        """Wait for a cell that trains, has a checkpoint, and was not hit by a fault before; return its rank 0."""
        found: list[Training] = []

        def look() -> bool:
            checkpoints = self.project.folder / "results/runs/mine/checkpoints"
            for training in self.watcher.alive("mine"):
                fresh = training.rank == 0 and training.cell not in {*self.hit, LONG.name}
                if fresh and (checkpoints / training.cell / "checkpoint.json").exists():
                    found.append(training)
            return bool(found)

        self.until(look)
        self.hit.add(found[0].cell)
        return found[0]

    def host_of(self, training: Training) -> str:
        places = self.project.folder / f"results/runs/mine/working/{training.cell}/rank0.place.json"
        return str(json.loads(places.read_text())["host"])

    def again(self, training: Training) -> None:
        """Wait until a cell is trained again after one of its trainings was ended."""
        before = training.started_at
        self.until(
            lambda: any(it.started_at > before for it in self.watcher.trainings("mine", training.cell)), seconds=300
        )

    def job_of(self, training: Training) -> str:
        lines = self.cluster.output(["squeue", "-h", "-t", "R", "-o", "%i %k"]).splitlines()
        return next(line.split()[0] for line in lines if line.split()[1] == f"rule_cell_wildcards_mine_{training.cell}")


def test_whatever_happens_the_tables_are_the_same(project: Project) -> None:
    cluster = project.cluster
    with Watcher(project.folder) as watcher:
        story = Story(project, watcher)
        rejected_sbatch(story)
        running = project.resume(*AT_ONCE)
        killed_rank(story)
        cancelled_job(story)
        full_disk(story)
        lost = crashed_node(story)  # once this is noticed, a fast machine has few cells left
        restarted_controller(story)
        story.until(lambda: len(story.finished) >= 4)
        killed_snakemake(story, running)
        corrupted = corrupted_record(story)
        assert project.resume().wait(60) == 2 and "half written" in project.screen, "it is named, to be deleted"
        (project.folder / f"results/runs/mine/cells/{corrupted}.json").unlink()
        running = project.resume(*AT_ONCE)
        story.until(lambda: len(story.finished) >= 7)
        interrupted(story, running)
        cluster.start(lost)
        assert project.resume(*AT_ONCE).wait(900) == 0, project.screen[-5000:]
        story.note()
    assert_equal_to_calm(project)
    assert not watcher.twice, "two processes trained the same rank of a cell at once"
    assert_none_ran_again(story, corrupted)
    long = project.records()[LONG.name]
    assert long.provenance["resumed_at_steps"], "the time limit: it went on from where it stopped before"


def rejected_sbatch(story: Story) -> None:
    """The partition takes no jobs: each submission is refused, until it takes some again."""
    cluster, project = story.cluster, story.project
    cluster.output(["scontrol", "update", "partition=gpu", "state=drain"])
    running = project.start(*AT_ONCE)
    assert running.wait(240) == 1, "all cells failed"
    assert "sbatch" in project.screen.partition("mine: ")[2]
    assert not story.finished and not watched(story)
    cluster.output(["scontrol", "update", "partition=gpu", "state=up"])


def watched(story: Story) -> list[Training]:
    return [it for it in story.watcher.seen.values() if it.run == "mine"]


def killed_rank(story: Story) -> None:
    training = story.victim()
    os.kill(training.pid, signal.SIGKILL)
    story.again(training)
    assert "was killed by SIGKILL" in logs(story, training)


def cancelled_job(story: Story) -> None:
    training = story.victim()
    story.cluster.output(["scancel", story.job_of(training)])
    story.again(training)


def full_disk(story: Story) -> None:
    """No byte can be written: whatever saves a checkpoint or a record then fails, and goes on when there is room."""
    training, filler = story.victim(), story.project.folder / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(bytes(2**20))
                file.flush()
        except OSError as error:
            assert "No space left" in str(error)
    assert shutil.disk_usage(story.project.folder).free < 2**20
    try:
        ended = {it.pid for it in story.watcher.alive("mine")}
        wait_until(lambda: not ended <= {it.pid for it in story.watcher.alive("mine")}, 120)
    finally:
        filler.unlink()
    assert training.cell in story.hit


def crashed_node(story: Story) -> str:
    training = story.victim()
    lost = story.host_of(training)
    story.cluster.crash(lost)
    story.again(training)
    assert story.host_of(training) != lost
    return lost


def restarted_controller(story: Story) -> None:
    before = {it.pid for it in story.watcher.alive("mine")}
    assert before
    story.cluster.ctld("kill")
    story.cluster.ctld("start")
    assert before & {it.pid for it in story.watcher.alive("mine")}, "cells that run do not need it"


def killed_snakemake(story: Story, running: subprocess.Popen[str]) -> None:
    """Its jobs go on without it; nobody can start the same run beside them."""
    story.until(lambda: story.watcher.alive("mine"))
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert story.project.start().wait(60) == 2
    assert "make resume RUN=mine" in story.project.screen


def corrupted_record(story: Story) -> str:
    story.note()
    name = sorted(story.finished)[0]
    file = story.project.folder / f"results/runs/mine/cells/{name}.json"
    file.write_bytes(file.read_bytes()[:200])
    return name


def interrupted(story: Story, running: subprocess.Popen[str]) -> None:
    story.until(lambda: story.watcher.alive("mine"))
    running.send_signal(signal.SIGINT)
    assert running.wait(120) != 0
    wait_until(lambda: not story.watcher.alive("mine"), 120)


def assert_equal_to_calm(project: Project) -> None:
    mine, calm = project.records(), project.records("calm")
    assert mine.keys() == calm.keys()
    for name, record in mine.items():
        other = calm[name]
        assert record.status == "ok", name
        assert record.metrics == other.metrics and record.metric_history == other.metric_history, name
        assert record.total_bytes == other.total_bytes and record.peak_states_bytes == other.peak_states_bytes, name
    for table in ("accuracy", "memory"):
        assert rows(project.table(table)) == rows(project.table(table, "calm")), table


def rows(table: str) -> list[dict[str, str]]:
    """All that a table says, but for the memory that the system gave to a process: it differs from run to run."""
    found = list(csv.DictReader(table.splitlines()))
    return [{key: value for key, value in row.items() if key != "peak_resident_bytes"} for row in found]


def assert_none_ran_again(story: Story, corrupted: str) -> None:
    """A cell that was finished was not trained after that, and its record is the same file still."""
    for name, content in story.finished.items():
        file = story.project.folder / f"results/runs/mine/cells/{name}.json"
        if name != corrupted:
            assert file.read_bytes() == content, name


def logs(story: Story, training: Training) -> str:
    """All that the jobs of a cell have said."""
    folder = story.project.folder / f"results/slurm-logs/rule_cell/mine_{training.cell}"
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in folder.glob("*.log"))
