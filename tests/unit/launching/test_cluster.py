"""Cells as jobs of a cluster, as far as it needs no cluster: ranks of a step, how they end, what is kept."""

import math
import os
import socket
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json
from benchmarks.launching.slurm import queue
from benchmarks.launching.slurm import step_task as task
from benchmarks.launching.slurm.queue import has_failed, lost_nodes
from benchmarks.launching.slurm.step import Placement, Task, judge, step
from benchmarks.launching.slurm.working import working_folder
from resireduce.errors import ConfigError

CELL = Cell(model="vgg-digits", threads=3)


def test_slurm_is_asked_without_a_user_s_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would leave out jobs and nodes, have scancel ask what nobody answers, or write times otherwise."""
    for name in ("SQUEUE_PARTITION", "SCANCEL_INTERACTIVE", "SINFO_PARTITION", "SACCT_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("SLURM_CONF", "ours")
    said = queue.ask(["env"])
    assert "=mine" not in said and "SLURM_CONF=ours" in said
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
    site = replace(TASK, interface="ib0", scratch="/tmp/$SLURM_JOB_ID")
    found = task.rank_variables({**STEP, "NCCL_SOCKET_IFNAME": "eth7"}, site)
    assert found["GLOO_SOCKET_IFNAME"] == "ib0" and "NCCL_SOCKET_IFNAME" not in found and found["TMPDIR"] == "/tmp/12"
    monkeypatch.setattr(task, "host_names", lambda nodes: [socket.gethostname()])
    found = task.rank_variables(STEP, TASK)
    assert found["GLOO_SOCKET_IFNAME"] == "lo" and "NCCL_SOCKET_IFNAME" not in found


SRUN = """#!/bin/bash
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=here SLURM_STEP_ID=5
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "$PYTHON" "${@: -3}" &
done
wait
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of Slurm's programs: a step of two tasks on this machine, which signals reach by their process."""
    folder = tmp_path / "bin"
    folder.mkdir()
    words = {"srun": SRUN, "scontrol": f"#!/bin/sh\necho {socket.gethostname()}\n", "scancel": "#!/bin/sh\nexit 1\n"}
    for name, text in words.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    return folder


def test_a_step_tells_how_each_of_its_ranks_ended_and_why_it_was_not_started(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    save_json(CELL.to_dict(), folder / "cell.json")
    with step(folder, Placement(1, 2), 1, TASK) as started:
        codes = [rank.wait() for rank in started]
    # Ranks were started, and ended at once: what they are limited by is missing.
    assert codes == [1, 1]
    assert (folder / "rank0.exit.json").exists() and (folder / "rank1.place.json").exists()
    assert started[0].complaint() is None
    (programs / "srun").write_text("#!/bin/sh\necho 'srun: error: Unable to create step: Invalid node' >&2\nexit 1\n")
    folder = tmp_path / "another"
    folder.mkdir()
    with step(folder, Placement(1, 2), 1, TASK) as started:
        assert started[1].wait() == 1
        assert started[1].complaint() == "srun: error: Unable to create step: Invalid node"


def test_a_cell_is_run_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.launching.slurm.working.WAIT_SECONDS", 0.0)
    output = tmp_path / "cells/x.json"
    with working_folder(CELL, output, shared=True) as folder:
        assert folder == tmp_path / f"working/{CELL.name}"
        (folder / "left").write_text("")
        with (
            pytest.raises(ConfigError, match=rf"{CELL.name} is being run by job .*, process {os.getpid()} on"),
            working_folder(CELL, output, shared=True),
        ):
            pass
    assert not folder.exists()
    folder.mkdir()
    (folder / "left").write_text("of a process that was killed")
    with working_folder(CELL, output, shared=True):
        assert not list(folder.iterdir())


NODE = "NodeName=node1 Arch=x86_64 State={} Boards=1 SlurmdStartTime=2026-01-01T12:{}:00 OS=Linux 6.1 #1 SMP Debian\n"


def test_a_node_has_failed_that_is_down_or_was_started_since() -> None:
    since = datetime(2026, 1, 1, 12, 1).timestamp()
    failed = [("IDLE", "02"), ("DOWN+NOT_RESPONDING", "00"), ("ALLOCATED*", "00")]
    for state, minute in (("IDLE", "00"), *failed):
        assert has_failed("node1", since, NODE.format(state, minute)) == ((state, minute) in failed)


def test_nodes_that_failed_are_avoided_by_all_cells_if_others_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"scontrol": NODE.format("DOWN", "00"), "sinfo": "node1\nnode2\nnode3\n"}
    monkeypatch.setattr("benchmarks.launching.slurm.queue.ask", lambda line: answers[line[0]])
    assert lost_nodes(tmp_path, "x", 1) == []
    save_json({"host": "node1"}, tmp_path / "working/x/rank0.place.json")
    assert lost_nodes(tmp_path, "x", 2) == ["node1"]
    assert lost_nodes(tmp_path, "another", 2) == ["node1"]
    assert lost_nodes(tmp_path, "another", 3) == []
