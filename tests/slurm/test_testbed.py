"""What the cluster on one machine promises to the other tests on it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.core.paths import ROOT
from benchmarks.launching.slurm.step import Placement, command
from tests.slurm.cluster import NODES, Cluster, wait_until

MEBIBYTES = 2
SERVE = f"""
import socket
with socket.create_server(("", 7000)) as server:
    print("ready", flush=True)
    link, _ = server.accept()
    left = {MEBIBYTES} << 20
    while left:
        left -= len(link.recv(1 << 16))
    link.sendall(b"all")
"""
SEND = f"""
import socket, time
with socket.create_connection(("node1", 7000)) as link:
    start = time.monotonic()
    link.sendall(bytes({MEBIBYTES} << 20))
    assert link.recv(3) == b"all"
    print(time.monotonic() - start)
"""


def _copy_seconds(cluster: Cluster) -> float:
    """From node2 to node1."""
    with cluster.popen([sys.executable, "-c", SERVE], on="node1", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            return float(cluster.output([sys.executable, "-c", SEND], on="node2"))
        finally:
            server.kill()


def _state(cluster: Cluster, job: str) -> str:
    return {one.id: one.state for one in cluster.jobs()}[job]


def test_nodes_show_their_gpus_to_a_task(cluster):
    assert cluster.nodes() == dict.fromkeys(NODES, "idle")
    seen = cluster.output(["srun", "--gres=gpu:2", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES; hostname"])
    assert seen.splitlines()[0] == "0,1"
    assert seen.splitlines()[1] in NODES


def test_four_ranks_are_spread_over_two_nodes(cluster):
    ranks = ["srun", "-N2", "--ntasks-per-node=2", "--gres=gpu:2", "bash", "-c", "echo $SLURM_PROCID $(hostname)"]
    lines = sorted(cluster.output(ranks).splitlines())
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    first, second, third, fourth = (line.split()[1] for line in lines)
    assert first == second != third == fourth


def test_ranks_have_the_variables_of_a_job_that_was_submitted_without_any(cluster, tmp_path):
    """By `sbatch --export=NONE`, which has srun do likewise."""
    *options, _, _, _, _ = command(tmp_path, Placement(1, 2), 1)
    seen = cluster.output([*options, "env"], env=os.environ | {"SLURM_EXPORT_ENV": "NONE", "NCCL_DEBUG": "WARN"})
    assert seen.splitlines().count("NCCL_DEBUG=WARN") == 2


def test_a_command_runs_in_the_folder_and_with_the_status_of_its_caller(cluster, tmp_path):
    assert cluster.output(["pwd"], cwd=tmp_path) == str(tmp_path)
    assert cluster.output(["pwd"], on="node2", cwd=tmp_path) == str(tmp_path)
    assert cluster.run(["bash", "-c", "exit 7"]).returncode == 7
    assert cluster.output(["hostname"]) == "head"
    assert cluster.output(["hostname"], on="node3") == "node3"


@pytest.mark.parametrize("on", [None, "node1"])
def test_an_interrupt_reaches_the_program(cluster, on):
    # As where the tests run in the background of a shell: programs would not be interrupted.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = "import time\ntry:\n print('up', flush=True); time.sleep(60)\n"
        code += "except KeyboardInterrupt: print('interrupted')"
        with cluster.popen([sys.executable, "-c", code], on, stdout=subprocess.PIPE) as program:
            assert program.stdout.readline() == "up\n"
            program.send_signal(signal.SIGINT)
            assert program.stdout.read() == "interrupted\n"
    finally:
        signal.signal(signal.SIGINT, before)
    assert program.returncode == 0


def test_a_slow_link_is_slow_until_it_is_fast_again(cluster):
    fast = _copy_seconds(cluster)
    cluster.slow("20mbit", "node1")
    cluster.crash("node1")
    cluster.start("node1")
    slow = _copy_seconds(cluster)
    cluster.fast()
    again = _copy_seconds(cluster)
    least = (MEBIBYTES * 2**20 - 2 * 2**16) * 8 / 20e6  # two queues let a burst of 64 KiB through at once
    assert least < slow < 4 * least
    assert max(fast, again) < least / 2


def test_ranks_of_two_nodes_know_the_rate_of_the_link_that_they_meet_over(cluster):
    cluster.slow("100mbit", "node1")
    code = "from benchmarks.core import interfaces; name = interfaces.interface_to('node2'); "
    code += "print(name, interfaces.rate_limit(name))"
    ask = [sys.executable, "-c", code]
    assert cluster.output(["srun", "-w", "node1", *ask], cwd=ROOT) == "eth0 100Mbit"
    assert cluster.output(["srun", "-w", "node3", *ask], cwd=ROOT) == "eth0 None"


def test_a_mount_on_the_login_node_is_seen_on_all_nodes_and_on_the_machine_not(cluster, tmp_path):
    cluster.output(["mount", "-t", "tmpfs", "-o", "size=1m", "small", tmp_path])
    try:
        for on in (None, *NODES):
            assert os.fspath(tmp_path) in cluster.output(["df", tmp_path], on)
        assert not tmp_path.is_mount()
    finally:
        cluster.output(["umount", tmp_path])


def test_a_crashed_node_is_noticed_and_comes_back(cluster, tmp_path):
    mark = tmp_path / "runs"
    command = ["sbatch", "--parsable", "--no-requeue", "--nodelist=node3", "--wrap", f"touch {mark}; sleep 300"]
    job = cluster.output(command, cwd=tmp_path)
    wait_until(mark.exists, 20)
    cluster.crash("node3")
    wait_until(lambda: cluster.nodes()["node3"].startswith("down"), 40)
    wait_until(lambda: _state(cluster, job) == "NODE_FAIL", 20)
    cluster.start("node3")
    assert cluster.output(["srun", "-w", "node3", "hostname"]) == "node3"


def test_a_killed_controller_comes_back_to_its_running_job(cluster, tmp_path):
    go = tmp_path / "go"
    wait = f"touch {tmp_path}/runs; until [ -e {go} ]; do sleep .1; done"
    job = cluster.output(["sbatch", "--parsable", "--no-requeue", "--wrap", wait], cwd=tmp_path)
    wait_until((tmp_path / "runs").exists, 20)
    time.sleep(6)  # the controller writes its state down every five seconds
    cluster.ctld("kill")
    assert "DOWN" in cluster.run(["scontrol", "ping"]).stdout
    cluster.ctld("start")
    assert _state(cluster, job) == "RUNNING"
    go.touch()
    wait_until(lambda: _state(cluster, job) == "COMPLETED", 30)


def test_two_clusters_at_once_know_nothing_of_each_other(cluster, tmp_path):
    with Cluster(tmp_path / "second") as second:
        name = "--job-name=of-the-second"
        second.output(["sbatch", name, "--wrap", "sleep 60"], cwd=tmp_path)
        second.crash("node1")
        assert [job.name for job in second.jobs()] == ["of-the-second"]
        assert "of-the-second" not in {job.name for job in cluster.jobs()}
        assert cluster.nodes() == dict.fromkeys(NODES, "idle")
        assert cluster.output(["srun", "-w", "node1", "hostname"]) == "node1"


@pytest.mark.full
def test_accounting_keeps_what_jobs_did(clusters):
    cluster = clusters(accounting="on")
    cluster.output(["srun", "--job-name=kept", "--account=default", "true"])
    jobs = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=jobname,account,state"]
    wait_until(lambda: cluster.output(jobs) == "kept|default|COMPLETED", 30)


@pytest.mark.full
def test_jobs_run_while_accounting_is_broken(clusters):
    cluster = clusters(accounting="broken")
    assert cluster.output(["srun", "hostname"]) in NODES
    assert cluster.run(["sacct"]).returncode
