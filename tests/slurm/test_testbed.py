"""What the cluster on one machine promises to the other tests on it."""

import os
import subprocess
import sys

from benchmarks.core.paths import ROOT
from benchmarks.launching.slurm.step import Placement, command
from tests.slurm.cluster import Cluster

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


def test_ranks_have_the_variables_of_a_job_that_was_submitted_without_any(cluster, tmp_path):
    """By `sbatch --export=NONE`, which has srun do likewise."""
    *options, _, _, _, _ = command(tmp_path, Placement(1, 2), 1)
    seen = cluster.output([*options, "env"], env=os.environ | {"SLURM_EXPORT_ENV": "NONE", "NCCL_DEBUG": "WARN"})
    assert seen.splitlines().count("NCCL_DEBUG=WARN") == 2


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
