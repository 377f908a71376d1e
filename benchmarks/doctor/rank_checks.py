"""Checks that start ranks: gloo, Horovod and NCCL."""

import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.core.interfaces import check_name
from benchmarks.doctor.finding import (
    LOOPBACK,
    SLOWLY,
    Finding,
    absent,
    explain,
    failed,
    last_words,
    not_run,
    ok,
    warning,
)
from benchmarks.doctor.gpu_checks import CUDA_BUILD, Facts
from benchmarks.launching.processes import Ended, Job, Run, run_together
from resireduce.errors import ConfigError

LAUNCHERS = ("SLURM_", "PMIX_", "PMI_", "OMPI_", "PRTE_", "HOROVOD_")
"""Prefixes of the variables by which a launcher tells a rank its place."""


def own_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without a launcher's variables, plus `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)} | more


def run_torch_ranks(backend: str, ranks: int, timeout_seconds: float, run: Run, **more: str) -> list[Ended]:
    """Have `ranks` processes sum a vector over torch.distributed, with `more` in their environments."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "benchmarks.doctor.in_child", "torch", backend, os.path.join(folder, "meet")]
        places = ({"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks))
        return run([Job(line, own_environment(**more, **place)) for place in places], timeout_seconds)


def judge_ranks(check: str, what: str, ended: Sequence[Ended], world_size: int, cure: str) -> Finding | None:
    """Return the failure of ranks that should have summed their vectors; None if all is right.

    Args:
        check: name of the check.
        what: what was tried, for the screen.
        ended: the processes; one of them may have started several ranks.
        world_size: expected number of ranks.
        cure: given if no known failure explains it.
    """
    reports = [report for one in ended for report in one.reports()]
    problem = _problem(reports, ended, world_size)
    if problem is None:
        return None
    if known := explain("\n".join(one.output for one in ended)):
        problem, cure = f"{known[0]}: {problem}", known[1]
    return failed(check, f"{what}: {problem}", cure)


def _problem(reports: Sequence[dict[str, Any]], ended: Sequence[Ended], world_size: int) -> str | None:
    if broken := [one.output for one in ended if one.code]:
        return last_words("\n".join(broken))
    ranks, sizes = sorted(report["rank"] for report in reports), {report["size"] for report in reports}
    if any(one.code is None for one in ended):
        return f"not done in time, {len(ranks)} of {world_size} ranks came to the end; {SLOWLY}"
    if ranks != list(range(world_size)) or sizes != {world_size}:
        return f"ranks {ranks} met, of worlds of {sorted(sizes)}, and not {world_size} ranks"
    wrong = [report["rank"] for report in reports if not report["right"]]
    return f"the sum is wrong on rank {wrong[0]}" if wrong else None


# --- gloo ---


def check_gloo(timeout_seconds: float, run: Run = run_together) -> list[Finding]:
    """Return one finding."""
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = run_torch_ranks("gloo", 2, timeout_seconds, run, **local)
    what = "all-reduce of 2 processes over torch.distributed"
    return [judge_ranks("gloo", what, ended, 2, LOOPBACK) or ok("gloo", f"{what} is right")]


# --- horovod ---

AGAIN = "horovodrun --check-build and --verbose say more; build it again: make horovod, or the image"
SHOWN = (("mpi", "MPI"), ("gloo", "Gloo"), ("nccl", "NCCL"))
WITH_NCCL = "image cuda12, or build Horovod with HOROVOD_GPU_OPERATIONS=NCCL"


def check_horovod(
    timeout_seconds: float,
    gpus: int = 0,
    installed: bool | None = None,
    run: Run = run_together,
) -> list[Finding]:
    """Return one finding. gpus: number that torch sees; if there are any, Horovod should have NCCL."""
    if not (find_spec("horovod") is not None if installed is None else installed):
        return [not_run("horovod", "it is not installed (make horovod); cells over torch.distributed do without")]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2"]
    rank = [sys.executable, "-m", "benchmarks.doctor.in_child", "horovod"]
    environment = own_environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    ended = run([Job([*launcher, *rank], environment)], timeout_seconds)
    what = "all-reduce of 2 processes over Horovod (Gloo)"
    problem = judge_ranks("horovod", what, ended, 2, AGAIN)
    if problem:
        try:
            check_name()
        except ConfigError as error:  # the machine's own name has no address
            said, _, cure = str(error).partition("; ")
            problem = failed("horovod", said, cure)
        return [problem]
    built = ended[0].reports()[0]["built"]
    parts = ", ".join(f"{name} {'yes' if built[key] else 'no'}" for key, name in SHOWN)
    if gpus and not built["nccl"]:
        return [warning("horovod", f"built without NCCL ({parts}): gradients would go by way of the CPU", WITH_NCCL)]
    return [ok("horovod", f"{what} is right; built with {parts}")]


# --- nccl ---

DEBUG = "NCCL_DEBUG=INFO python -m benchmarks doctor --only nccl says more"


def check_nccl(facts: Facts, timeout_seconds: float, needed: bool = False, run: Run = run_together) -> list[Finding]:
    """Return one finding. needed: a missing GPU is a failure."""
    if facts.error or facts.nccl is None:
        torch = f"torch {facts.torch}" if facts.torch else "torch"
        return [absent("nccl", facts.error or f"{torch} is without NCCL", CUDA_BUILD, needed)]
    if not facts.gpus:
        return [absent("nccl", "all-reduce: torch sees no GPU", "see check gpu", needed)]
    ranks = min(2, len(facts.gpus))
    ended = run_torch_ranks("nccl", ranks, timeout_seconds, run, NCCL_DEBUG=os.environ.get("NCCL_DEBUG", "WARN"))
    what = f"all-reduce over {ranks} GPU{'s' if ranks > 1 else ''}"
    return [judge_ranks("nccl", what, ended, ranks, DEBUG) or ok("nccl", f"{what} is right, by NCCL {facts.nccl}")]
