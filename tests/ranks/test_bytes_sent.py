"""Bytes that ranks send over gloo, counted by the kernel on a loopback of their own, where nothing else is sent.

`unshare -n sh -c 'ip link set lo up; python -m tests.ranks.test_bytes_sent 16 block8-two-phase'` prints them, by rank
and element, for any number of ranks.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from tests.processes import on_processes

SHAPE, STEPS = (1000, 2000), 2
MOST = {"block8-two-phase": 2.1, "block4-two-phase": 1.1, "fp8-two-phase": 2.1}
"""By compressor, the most bytes an element that a rank may send, at any number of ranks."""


def received() -> int:
    """Bytes that have come over loopback."""
    line = next(one for one in Path("/proc/net/dev").read_text().splitlines() if one.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[0])


def count(compressor: str, communicator: Communicator) -> None:
    """Take steps; rank 0 prints the bytes."""
    model = nn.Linear(*SHAPE, bias=False)
    optimizer = resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.01), "baseline", compressor)

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            model(torch.full((1, SHAPE[0]), communicator.rank + 1.0)).square().sum().backward()
            optimizer.step()
        dist.barrier()

    steps(2)  # in the first, ranks agree on more
    before = received()
    dist.barrier()
    steps(STEPS)
    if communicator.rank == 0:
        bytes_sent = (received() - before) / STEPS / communicator.world_size
        print(compressor, bytes_sent / SHAPE[0] / SHAPE[1], flush=True)


def has_namespaces() -> bool:
    """Whether this user may have a network of its own."""
    tools = shutil.which("unshare") and shutil.which("ip")
    return bool(tools) and subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="counting needs root, unshare and ip")
def test_two_phases_send_few_bytes_at_any_number_of_ranks() -> None:
    inner = f"ip link set lo up && exec {sys.executable} -m tests.ranks.test_bytes_sent 4 {' '.join([*MOST, 'block8'])}"
    done = subprocess.run(["unshare", "-n", "sh", "-c", inner], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    found = {one[0]: float(one[1]) for one in words if one and one[0] in (*MOST, "block8")}
    ring = 2 * 3 / 4  # of the elements, by each of four ranks
    for name, most in MOST.items():
        assert ring * most / 2 * 0.9 < found[name] < ring * most / 2 * 1.05, found
    assert found["block8"] > 2.9, "each rank's message travels to three others"


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for name in sys.argv[2:]:
        on_processes(int(sys.argv[1]), partial(count, name))
