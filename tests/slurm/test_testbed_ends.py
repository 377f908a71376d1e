"""A cluster on one machine leaves nothing behind, however it ends."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until


def _machine() -> tuple[str, list[str], bool]:
    """What a cluster must not change."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return mounts, sorted(os.listdir("/sys/class/net")), Path("/etc/slurm").exists()


def _holder(folder: Path) -> Path:
    return Path("/proc") / (folder / "run/holder.pid").read_text(encoding="ascii").strip()


def _networks() -> set[str]:
    """The network namespaces of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(process))
        except OSError:
            continue  # ended meanwhile
    return found


@pytest.mark.parametrize("killed", [None, "slurmctld", "holder"])
def test_down_leaves_nothing(tmp_path, killed):
    before, folder = _machine(), tmp_path / "cluster"
    cluster = Cluster(folder)
    cluster.up()
    network = os.readlink(_holder(folder) / "ns/net")
    job = cluster.output(["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 300"])
    assert job in {one.id for one in cluster.jobs()}
    program = cluster.popen(["bash", "-c", "echo up; sleep 300; exit"], on="node1", stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    if killed == "holder":
        os.kill(int(_holder(folder).name), signal.SIGKILL)
    elif killed is not None:
        cluster.output(["bash", "-c", f"kill -9 $(cat {folder}/run/{killed}.pid)"])
    cluster.down()
    assert program.wait(10) == -signal.SIGKILL
    wait_until(lambda: network not in _networks(), 10)
    assert not folder.exists()
    assert _machine() == before
    cluster.down()  # nothing to do
