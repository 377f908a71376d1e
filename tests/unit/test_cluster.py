"""Cells as jobs of a cluster, as far as it needs no cluster: sites, places, what is asked of Slurm and what it says."""

import math
import os
import signal
import socket
import sys
import threading
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_slurm.partitions import PartitionLimits
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from benchmarks.__main__ import main
from benchmarks.cell import Cell
from benchmarks.cluster import job, task
from benchmarks.cluster.lost import has_failed, lost_nodes
from benchmarks.cluster.placement import Placement, job_resources, place
from benchmarks.cluster.site import LIMITS, Site
from benchmarks.cluster.step import Task, judge, step
from benchmarks.cluster.working import find_kept, keep, working_folder
from benchmarks.files import save_json
from benchmarks.training.interfaces import address_of, interface_to
from benchmarks.training.rendezvous import tcp_store
from resireduce.errors import ConfigError
from tests.records import make_result
from tests.slurm_outputs import shipped_site

CELL = Cell(model="vgg-digits")


def ranks(count: int, nodes: int | None = None) -> Cell:
    return Cell(model="vgg-digits", world_size=count, nodes=nodes)


def test_the_site_that_is_shipped_is_that_of_one_who_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "partitions.yaml"
    path.write_text(shipped_site(), encoding="utf-8")
    assert Site.load(path) == Site()


BAD_SITES = [
    ("site: {}", r"partitions: missing"),
    ("[1]", r"file: \[1\] is not a mapping of names to values"),
    ("partitions: {}\nsite: {gpus: 2}", r"'gpus' is not known"),
    ("partitions: {}\nsite: {gpus_per_node: -1}", r"gpus_per_node: -1 is not allowed; give a whole number from 0"),
    ("partitions: {}\nsite: {minutes: true}", r"minutes: True is not allowed"),
    ("partitions: {}\nsite: {minutes: 0}", r"minutes: 0 is not allowed; give a whole number from 1"),
    ("partitions: {}\nsite: {gres: 'gpu:a100:4'}", r"gres: 'gpu:a100:4' is not allowed; give gpu, or gpu:TYPE"),
    ("partitions: {}\nsite: {modules: cuda}", r"modules: 'cuda' is not allowed; give a list of names"),
    ("partitions: {}\nsite: {runtime: dokcer}", r"runtime: 'dokcer' is not known \(did you mean 'docker'\?\)"),
    ("partitions: {}\nsite: {account: [a]}", r"account: \['a'\] is not allowed; give a text, or null"),
    ("partitions: {}\nsite: {account: ", r"is no YAML"),
    ("partitons: {}", r"file key: 'partitons' is not known \(did you mean 'partitions'\?\)"),
    ("partitions: {}\nsite: {gres: 'gpu:h100 --foo'}", r"gres: 'gpu:h100 --foo' is not allowed; give gpu, or gpu:TYPE"),
    ("partitions: {a: {max_nods: 4}}", r"partitions: a key: 'max_nods' is not known \(did you mean 'max_nodes'\?\)"),
    ("partitions: {a: {max_nodes: four}}", r"partitions: a: max_nodes: 'four' is not allowed; give a number"),
    ("partitions: {a: }", r"partitions: a: None is not allowed; give limits by name"),
    ("partitions: {a: 4}", r"partitions: a: 4 is not allowed; give limits by name"),
    ("partitions: {a: {max_gpu: 2}}", r"gpus_per_node: 8 is not allowed: max_gpu of all partitions is 2 at most"),
    (
        "partitions: {}\nsite: {minutes: 1000000000}",
        r"minutes: 1000000000 is not allowed; give a whole number from",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD_SITES)
def test_a_site_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Site.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_site_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"site: .*/none.yaml cannot be read: No such file"):
        Site.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("cell", "gpus", "placement"),
    [
        (ranks(1), 8, Placement(1, 1)),
        (ranks(8), 8, Placement(1, 8)),
        (ranks(64), 8, Placement(8, 8)),
        (ranks(2, nodes=2), 8, Placement(2, 1)),
        (ranks(8, nodes=2), 8, Placement(2, 4)),
        (ranks(12), 8, Placement(2, 6)),
        (ranks(7), 4, Placement(7, 1)),
        (ranks(4), 0, Placement(2, 2)),
    ],
)
def test_ranks_are_on_as_few_nodes_as_hold_them(cell: Cell, gpus: int, placement: Placement) -> None:
    assert place(cell, Site(gpus_per_node=gpus, ranks_per_node=2)) == placement


def test_a_node_holds_no_more_ranks_than_gpus() -> None:
    with pytest.raises(ConfigError, match=r"nodes: 2 would put 4 ranks on each, and the site has gpus_per_node: 2"):
        place(ranks(8, nodes=2), Site(gpus_per_node=2))


@pytest.mark.parametrize(("nodes", "message"), [(3, "allowed: 1, 2, 4"), (5, "nodes"), (0, "nodes"), ("2", "nodes")])
def test_ranks_are_divided_evenly(nodes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ranks(4, nodes=nodes)


def test_a_cell_on_nodes_of_its_own_has_another_name() -> None:
    assert ranks(2, nodes=2).name == "vgg-digits.topk.baseline.kept.d0.01.s0.nodes2"
    assert Cell.from_dict(ranks(2, nodes=2).to_dict()) == ranks(2, nodes=2)


def test_gpus_are_asked_for_by_node_and_more_with_each_try() -> None:
    site = Site(gres="gpu:a100", gpus_per_node=4, memory_mb_per_rank=100, minutes=60, longest_minutes=100)
    first, second = (job_resources(ranks(8), site, attempt) for attempt in (1, 2))
    assert first["gres"] == "gpu:a100:4" and first["nodes"] == 2 and "tasks" not in first
    assert first["slurm_extra"] == "--ntasks-per-node=4"
    assert (first["mem_mb"], second["mem_mb"]) == (400, 800)
    assert (first["runtime"], second["runtime"]) == (60, 100)
    assert job_resources(ranks(8), replace(site, most_memory_mb=700), 2)["mem_mb"] == 700


def test_an_account_is_named_where_the_executor_does_not_look_it_up() -> None:
    extra = job_resources(ranks(2), Site(account="my lab"))["slurm_extra"]
    assert extra == "--ntasks-per-node=2 -A'my lab'"
    validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(slurm_extra=extra)))


def test_without_gpus_tasks_are_asked_for() -> None:
    found = job_resources(ranks(4), Site(gpus_per_node=0, ranks_per_node=2))
    assert found["tasks"] == 4 and "gres" not in found


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("1:02", 62),
        ("2:03:04", 7384),
        ("1-00:00:10", 86410),
        ("UNLIMITED", math.inf),
        ("INVALID", math.inf),
        ("", math.inf),
    ],
)
def test_the_time_that_a_job_has_left(said: str, seconds: float) -> None:
    assert job.seconds_left(f" {said}\n") == seconds


def test_outside_of_a_job_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigError, match=r"launcher: 'srun' works within a Slurm job only"):
        job.job_id()
    with pytest.raises(ConfigError, match=r"no-such-program: not on PATH"):
        job.ask(["no-such-program"])
    with pytest.raises(ConfigError, match=r"ls /no-such-folder: .*No such file"):
        job.ask(["ls", "/no-such-folder"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--launcher", "srun"],
            "launcher: 'srun' works within a Slurm job only; start it by: snakemake --profile slurm",
        ),
        (["--launcher", "mpirun"], "launcher: 'mpirun' is not known (did you mean 'srun'?); allowed: here, srun"),
        ([], "nodes: 2 needs several machines; run it on a cluster: snakemake --profile slurm"),
    ],
)
def test_what_cannot_be_launched_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    save_json(ranks(2, nodes=2).to_dict(), tmp_path / "cell.json")
    line = ["run", "--cell", str(tmp_path / "cell.json"), "--output", str(tmp_path / "out.json"), *options]
    assert main(line) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("srun: error: Node failure on node3", "node-fail"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
            "oom",
        ),
        ("srun: error: node1: task 1: Exited with exit code 1", None),
    ],
)
def test_what_slurm_says_of_the_end_of_a_step(line: str, status: str | None) -> None:
    found = judge(["something", line])
    assert (found and found["status"]) == status
    assert status is None or line in found["reason"]  # type: ignore[index]


STEP = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}
TASK = Task(weights=None, root="data", checkpoints=None, ranks_per_node=2)


def test_a_task_finds_out_which_rank_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "host_names", lambda nodes: ["node1", "node2"])
    monkeypatch.setattr(task, "interface_to", lambda host: f"to-{host}")
    found = task.rank_variables({**STEP, "SLURMD_NODENAME": "node2", "SLURM_CPUS_PER_TASK": "3"}, TASK)
    assert found == {
        **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "3"},
        **{"GLOO_SOCKET_IFNAME": "to-node1", "NCCL_SOCKET_IFNAME": "to-node1"},
    }
    with pytest.raises(ConfigError, match=r"task 3 is number 1 on its node, which has 1"):
        task.rank_variables(STEP, Task(weights=None, root="data", checkpoints=None, ranks_per_node=1))


def test_what_the_site_says_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    site = Task(
        weights=None, root="data", checkpoints=None, ranks_per_node=2, interface="ib0", scratch="/tmp/$SLURM_JOB_ID"
    )
    found = task.rank_variables({**STEP, "NCCL_SOCKET_IFNAME": "eth7"}, site)
    assert found["GLOO_SOCKET_IFNAME"] == "ib0" and "NCCL_SOCKET_IFNAME" not in found and found["TMPDIR"] == "/tmp/12"


def test_on_one_node_ranks_meet_on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "host_names", lambda nodes: [socket.gethostname()])
    found = task.rank_variables(STEP, TASK)
    assert found["GLOO_SOCKET_IFNAME"] == "lo" and "NCCL_SOCKET_IFNAME" not in found


def test_the_device_of_a_route() -> None:
    assert interface_to("127.0.0.1") == "lo" and address_of("lo") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"interface: no route from .* to no-such-host.invalid"):
        interface_to("no-such-host.invalid")


def test_ranks_meet_in_a_store_whose_address_is_in_a_file(tmp_path: Path) -> None:
    stores: list[Any] = []
    other = threading.Thread(target=lambda: stores.append(tcp_store(tmp_path, 1, 2, "127.0.0.1", 20)))
    other.start()
    first = tcp_store(tmp_path, 0, 2, "127.0.0.1", 20)
    other.join()
    first.set("word", "said")
    assert stores[0].get("word") == b"said"
    with pytest.raises(ConnectionError, match=r"rank 1 waited 0.05 s for .*torch.json"):
        tcp_store(tmp_path / "..", 1, 2, "127.0.0.1", 0.05)


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


def test_a_step_tells_how_each_of_its_ranks_ended(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    save_json(CELL.to_dict(), folder / "cell.json")
    with step(folder, Placement(1, 2), 1, TASK) as started:
        codes = [rank.wait() for rank in started]
    # Ranks were started, and ended at once: what they are limited by is missing.
    assert codes == [1, 1]
    assert (folder / "rank0.exit.json").exists() and (folder / "rank1.place.json").exists()
    assert started[0].complaint() is None


def test_a_step_that_is_not_started_says_why(tmp_path: Path, programs: Path) -> None:
    (programs / "srun").write_text(
        "#!/bin/sh\necho 'srun: error: Unable to create step: Invalid node count' >&2\nexit 1\n"
    )
    folder = tmp_path / "launch"
    folder.mkdir()
    with step(folder, Placement(1, 2), 1, TASK) as started:
        assert started[1].wait() == 1
        assert started[1].complaint() == "srun: error: Unable to create step: Invalid node count"


def test_a_step_that_hangs_is_ended(tmp_path: Path, programs: Path) -> None:
    (programs / "srun").write_text("#!/bin/sh\nexec sleep 100\n")
    folder = tmp_path / "launch"
    folder.mkdir()
    with step(folder, Placement(1, 2), 1, TASK) as started:
        assert started[0].poll() is None
        started[0].kill()
        assert started[0].wait() == -signal.SIGKILL


def test_a_cell_is_run_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cluster.working.WAIT_SECONDS", 0.0)
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


def test_a_record_is_taken_again_only_if_all_that_it_depends_on_is_the_same(tmp_path: Path) -> None:
    content, file = {"cell": CELL.to_dict(), "code": "abc"}, tmp_path / "kept.json"
    assert find_kept(None, content) is None and find_kept(file, content) is None
    result = make_result(CELL)
    result.provenance["content"] = content
    keep(result, file)
    assert find_kept(file, content) == result
    assert find_kept(file, {**content, "code": "abd"}) is None
    file.write_text(file.read_text()[:100])
    assert find_kept(file, content) is None


NODE = "NodeName=node1 Arch=x86_64 State={state} Boards=1 SlurmdStartTime={started} OS=Linux 6.1 #1 SMP Debian\n"


@pytest.mark.parametrize(
    ("state", "started", "failed"),
    [
        ("IDLE", "2026-01-01T12:00:00", False),
        ("MIXED", "2026-01-01T12:00:59", False),
        ("IDLE", "2026-01-01T12:02:00", True),
        ("DOWN+NOT_RESPONDING", "2026-01-01T12:00:00", True),
        ("ALLOCATED*", "2026-01-01T12:00:00", True),
        ("IDLE", "None", False),
    ],
)
def test_a_node_has_failed_that_is_down_or_was_started_since(state: str, started: str, failed: bool) -> None:
    since = datetime(2026, 1, 1, 12, 1).timestamp()
    assert has_failed("node1", since, NODE.format(state=state, started=started)) == failed


def test_nodes_that_failed_are_avoided_by_all_cells_if_others_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = "2100-01-01T00:00:00"
    answers = {"scontrol": NODE.format(state="IDLE", started=started), "sinfo": "node1\nnode2\nnode3\n"}
    monkeypatch.setattr("benchmarks.cluster.lost.ask", lambda line: answers[line[0]])
    assert lost_nodes(tmp_path, "x", 1) == []
    save_json({"host": "node1"}, tmp_path / "working/x/rank0.place.json")
    assert lost_nodes(tmp_path, "x", 2) == ["node1"]
    assert lost_nodes(tmp_path, "another", 2) == ["node1"]
    assert lost_nodes(tmp_path, "another", 3) == []


def test_limits_that_the_executor_knows_are_those_that_are_checked() -> None:
    known = {field.name for field in fields(PartitionLimits)}
    assert set(LIMITS) | {"available_gpu_models", "supports_mpi", "available_constraints"} == known


def test_partitions_that_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("partitions: {a: {max_gpu: 8, max_runtime: 1-00:00:00}, b: {max_nodes: .inf}, c: {}}\n")
    assert Site.load(file) == Site()
