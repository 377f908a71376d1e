"""Snakemake is killed, or interrupted, while cells run and others wait; then `make resume`."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, Program, wait_until
from tests.slurm.project import Project
from tests.slurm.watch import Watcher

CELLS = 4
"""Two run at once: while one is held and another has ended, a third runs and a fourth waits."""
MATRIX = [{"model": "vgg-digits", "world_size": 1, "density": 0.01, "steps": 300, "seed": list(range(CELLS))}]


class Terminal(Project):
    """Its programs are started as those of a terminal: each in a group of processes of its own."""

    def popen(self, command: Sequence[object]) -> Program:
        """Start a command in the copy, on the login node."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.folder / "screen.txt").open("a", encoding="utf-8") as screen:
            options = {"cwd": self.folder, "env": environment, "stdout": screen, "stderr": screen}
            return self.cluster.popen(command, start_new_session=True, **options)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, shared_cluster: Cluster) -> Project:
    """Return the project after an undisturbed run, `calm`."""
    shared_cluster.reset()
    project = Terminal.make(
        tmp_path_factory.mktemp("resume") / "project", shared_cluster, MATRIX, checkpoint_minutes=0.02
    )
    assert project.start(run="calm").wait(180) == 0, project.screen
    return project


@pytest.fixture
def narrow(cluster: Cluster):
    """The cluster with one node only: two cells run, others wait."""
    cluster.output(["scontrol", "update", "nodename=node[2-4]", "state=drain", "reason=test"])
    yield cluster
    cluster.output(["scontrol", "update", "nodename=node[2-4]", "state=resume"])


def stop_in_the_middle(
    project: Project, watcher: Watcher, run: str, sign: signal.Signals, among: set[str]
) -> dict[str, bytes]:
    """Send a signal to Snakemake while its jobs are in these states, and one has saved what it can go on from.

    That one is held from the moment it has saved until Slurm cancels it, far from its last step: it cannot end before.
    Returns the records of that moment.
    """
    known, folder = {job.id for job in project.cluster.jobs()}, project.folder / f"results/runs/{run}"

    def hold_one() -> bool:
        saved = (folder / "checkpoints").glob("*/checkpoint.json")
        return any(watcher.send(run, checkpoint.parent.name, signal.SIGSTOP) for checkpoint in saved)

    def in_the_middle() -> bool:
        return among <= {job.state for job in project.cluster.jobs() if job.id not in known}

    running = project.start(run=run)
    wait_until(hold_one, 180, pause_seconds=0.02)
    wait_until(in_the_middle, 180)
    finished = {path.name: path.read_bytes() for path in (folder / "cells").glob("*.json")}
    if sign == signal.SIGKILL:
        running.kill()
    else:
        os.killpg(running.pid, sign)
    running.wait(90)
    return finished


def check(project: Project, watcher: Watcher, run: str, finished: dict[str, bytes]) -> None:
    """What a run must be like after it was gone on with."""
    calm, records = project.records("calm"), project.records(run)
    assert {name: record.metrics for name, record in records.items()} == {
        name: record.metrics for name, record in calm.items()
    }
    assert len(records) == CELLS and {record.status for record in records.values()} == {"ok"}
    assert not watcher.twice, "no cell ran twice at once"
    for name, content in finished.items():
        assert (project.folder / f"results/runs/{run}/cells/{name}").read_bytes() == content
        assert len(watcher.trainings(run, Path(name).stem)) == 1, "a finished cell is not trained again"
    assert not list((project.folder / f"results/runs/{run}/finished").glob("*.json"))
    assert project.table("accuracy", run) == project.table("accuracy", "calm")


def states(project: Project) -> list[str]:
    return [job.state for job in project.cluster.jobs() if job.state in ("RUNNING", "PENDING")]


def test_jobs_of_a_killed_snakemake_end_before_the_run_goes_on(project: Project, narrow: Cluster) -> None:
    with Watcher(project.folder) as watcher:
        finished = stop_in_the_middle(project, watcher, "killed", signal.SIGKILL, {"COMPLETED", "RUNNING", "PENDING"})
        assert finished
        left = states(project)
        assert {"RUNNING", "PENDING"} == set(left), "they outlive it"
        last = project.cluster.jobs()[-1].id
        assert project.start(run="killed").wait(60) == 2, project.screen
        assert "left by an earlier start; end them and go on: make resume RUN=killed\n" in project.screen
        assert project.cluster.jobs()[-1].id == last, "nothing was submitted"
        assert project.resume(run="killed").wait(180) == 0, project.screen
    assert "results/runs/killed: cancelling " in project.screen
    check(project, watcher, "killed", finished)


def test_a_run_goes_on_after_ctrl_c(project: Project, narrow: Cluster) -> None:
    with Watcher(project.folder) as watcher:
        finished = stop_in_the_middle(project, watcher, "interrupted", signal.SIGINT, {"RUNNING", "PENDING"})
        assert not states(project)
        assert project.resume(run="interrupted").wait(180) == 0, project.screen
    check(project, watcher, "interrupted", finished)
    assert any(record.provenance["resumed_at_steps"] for record in project.records("interrupted").values())
