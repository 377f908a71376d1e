"""The last step of an image's build: fails if what is in it is not right. Names what Horovod must be built with.

No compiler, and the library's own loops compiled; Horovod as asked for; with two processes the right all-reduce by
torch's gloo, Horovod's Gloo and MPI.
"""

import os
import shutil
import subprocess
import sys

COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "nvcc", "ptxas")
LIMIT_SECONDS = 120

HOROVOD = """
import horovod.torch as hvd, torch
hvd.init()
assert hvd.size() == 2, f"{hvd.size()} ranks instead of 2"
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
assert total == 3.0, f"the sum over the ranks is {total}, not 3"
"""
TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
assert dist.get_world_size() == 2 and total.item() == 3.0, f"the sum over the ranks is {total.item()}, not 3"
dist.destroy_process_group()
"""


def main(needed: list[str]) -> None:
    """Check all, or end with one line that says what is wrong."""
    if found := [name for name in COMPILERS if shutil.which(name)]:
        sys.exit(f"error: the image has compilers in it: {', '.join(found)}")
    _run(sys.executable, "-c", "from resireduce.kernels.ops import library; assert library(), 'no compiled loops'")
    built = _run("horovodrun", "--check-build")
    if missing := [name for name in needed if f"[X] {name}" not in built]:
        sys.exit(f"error: Horovod is built without {', '.join(missing)}:\n{built}")
    # Loopback, and as many processes as asked for however few cores there are.
    _run("horovodrun", "-np", "2", "--gloo", sys.executable, "-c", HOROVOD)
    _run("mpirun", "-np", "2", "--oversubscribe", sys.executable, "-c", HOROVOD)
    _run("torchrun", "--nproc-per-node=2", "--no-python", sys.executable, "-c", TORCH)
    print(built)


def _run(*command: str) -> str:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)[:100]} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
