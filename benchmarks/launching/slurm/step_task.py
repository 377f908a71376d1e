"""One task of a step: finds out which rank it is, and runs it.

`srun ... python -m benchmarks.launching.slurm.step_task FOLDER`.
"""

import math
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_json
from benchmarks.core.interfaces import interface_to
from benchmarks.launching.containers.runtime import Runtime
from benchmarks.launching.launch import cell_variables, rank_arguments, starting
from benchmarks.launching.processes import RankProcess, passing_on, wait_for
from benchmarks.launching.slurm.queue import host_names
from benchmarks.launching.slurm.step import TASK, Task, exit_file, place_file
from resireduce.errors import ConfigError

LOOPBACK = "lo"


def rank_variables(environment: Mapping[str, str], task: Task) -> dict[str, str]:
    """Return the variables that tell a rank its number and its network device, from what Slurm tells its task.

    Raises ConfigError if the step is not as requested, or if there is no route to the other nodes.
    """
    local_rank, on_each = int(environment["SLURM_LOCALID"]), task.ranks_per_node
    if local_rank >= on_each:
        raise ConfigError(f"task {environment['SLURM_PROCID']} is number {local_rank} on its node, which has {on_each}")
    interface = task.interface or _interface(environment)
    found = {"RANK": environment["SLURM_PROCID"], "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"]}
    found |= {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(on_each)}
    found |= {"GLOO_SOCKET_IFNAME": interface}
    if interface != LOOPBACK and "NCCL_SOCKET_IFNAME" not in environment:
        found |= {"NCCL_SOCKET_IFNAME": interface}
    return found


def _interface(environment: Mapping[str, str]) -> str:
    """Return the device of the route to another node of the step; the loopback for a single node."""
    own = environment.get("SLURMD_NODENAME", socket.gethostname())
    others = [host for host in host_names(environment["SLURM_STEP_NODELIST"]) if host != own]
    return interface_to(others[0]) if others else LOOPBACK


def run(folder: Path) -> int:
    """Run this task's rank until it ends, pass signals on to it, and return its exit status."""
    rank, task = int(os.environ["SLURM_PROCID"]), Task(**load_json(folder / TASK))
    place = {"host": socket.gethostname(), "step": os.environ["SLURM_STEP_ID"], "pid": os.getpid()}
    started: list[RankProcess] = []
    with passing_on(started) as came:
        save_json(place, place_file(folder, rank))
        try:
            code = _run_rank(folder, rank, task, came, started)
        except (ConfigError, OSError) as error:
            values = {"status": "error", "reason": f"rank {rank} on {place['host']}: {error}"}
            save_json(values, folder / f"rank{rank}.json")
            code = 1
        save_json({"returncode": code}, exit_file(folder, rank))
    return code if code >= 0 else 128 - code


def _run_rank(folder: Path, rank: int, task: Task, came: list[int], started: list[RankProcess]) -> int:
    cell, variables = Cell.from_dict(load_json(folder / "cell.json")), rank_variables(os.environ, task)
    weights, root = Path(task.weights) if task.weights else None, Path(task.root)
    arguments = rank_arguments(cell, rank, folder, weights, root)
    read = [weights, *(root / name for name in cell.needs)]
    runtime: Runtime | None = None
    if task.runtime != "none" and task.image is not None:
        from benchmarks.launching.containers.choose import find_runtime

        runtime = find_runtime(task.runtime, task.image)
    with starting(runtime, folder, [Path(task.checkpoints) if task.checkpoints else None], read) as start:
        process = start(arguments, variables | cell_variables(cell))
        started.append(process)
        for number in came:  # signals from before it was started
            process.send_signal(number)
        wait_for([process], math.inf, lambda: False, 0)
    if said := process.complaint():
        raise ConfigError(f"was not started: {said}")
    assert process.returncode is not None
    return process.returncode


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
