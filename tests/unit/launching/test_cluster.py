"""Cells as jobs of a cluster, as far as it needs no cluster: ranks of a step, how they end, what is kept."""

import math
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json
from benchmarks.launching.slurm import queue
from benchmarks.launching.slurm import step_task as task
from benchmarks.launching.slurm.queue import lost_nodes
from benchmarks.launching.slurm.step import Task, judge
from benchmarks.launching.slurm.working import working_folder
from resireduce.errors import ConfigError

CELL = Cell(model="vgg-digits", threads=3)


def test_the_time_that_a_job_has_left() -> None:
    for said, seconds in (("1:02", 62), ("1-00:00:10", 86410), ("UNLIMITED", math.inf)):
        assert queue.seconds_left(f" {said}\n") == seconds


def test_what_slurm_says_of_the_end_of_a_step() -> None:
    for line, status in (
        ("srun: error: Node failure on node3", "node-fail"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been", "oom"),
    ):
        found = judge(["something", line])
        assert found is not None and found.status == status and line in str(found.reason)
    assert judge(["something", "srun: error: node1: task 1: Exited with exit code 1"]) is None


STEP = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}
TASK = Task(weights=None, root="data", checkpoints=None, ranks_per_node=2)


def test_a_task_finds_out_which_rank_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "host_names", lambda nodes: ["node1", "node2"])
    monkeypatch.setattr(task, "interface_to", lambda host: f"to-{host}")
    found = task.rank_variables({**STEP, "SLURMD_NODENAME": "node2", "SLURM_CPUS_PER_TASK": "2"}, TASK)
    assert found == {
        **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        **{"GLOO_SOCKET_IFNAME": "to-node1", "NCCL_SOCKET_IFNAME": "to-node1"},
    }
    with pytest.raises(ConfigError, match=r"task 3 is number 1 on its node, which has 1"):
        task.rank_variables(STEP, replace(TASK, ranks_per_node=1))


def test_what_the_site_says_comes_first_and_on_one_node_ranks_meet_on_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    found = task.rank_variables({**STEP, "NCCL_SOCKET_IFNAME": "eth7"}, replace(TASK, interface="ib0"))
    assert found["GLOO_SOCKET_IFNAME"] == "ib0" and "NCCL_SOCKET_IFNAME" not in found
    monkeypatch.setattr(task, "host_names", lambda nodes: [socket.gethostname()])
    found = task.rank_variables(STEP, TASK)
    assert found["GLOO_SOCKET_IFNAME"] == "lo" and "NCCL_SOCKET_IFNAME" not in found


def test_a_cell_is_run_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.launching.slurm.working.WAIT_SECONDS", 0.0)
    output = tmp_path / "cells/x.json"
    with working_folder(CELL, output, shared=True) as folder:
        assert folder == tmp_path / f"working/{CELL.name}"
        (folder / "left").write_text("")
        with (
            pytest.raises(ConfigError, match=rf"{CELL.name} is in use by process {os.getpid()} on"),
            working_folder(CELL, output, shared=True),
        ):
            pass
    assert not folder.exists()
    folder.mkdir()
    (folder / "left").write_text("of a process that was killed")
    with working_folder(CELL, output, shared=True):
        assert not list(folder.iterdir())


def test_nodes_that_failed_are_avoided_by_all_cells_if_others_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.launching.slurm.queue.ask", lambda line: "node1 down*\nnode2 idle\nnode3 mixed\n")
    assert lost_nodes(tmp_path, "x", 1) == []
    save_json({"host": "node1"}, tmp_path / "working/x/rank0.place.json")
    assert lost_nodes(tmp_path, "x", 2) == ["node1"]
    assert lost_nodes(tmp_path, "another", 2) == ["node1"]
    assert lost_nodes(tmp_path, "another", 3) == []
