"""Check horovod: what it was built with, and two processes started by its own launcher."""

import sys
from importlib.util import find_spec

from benchmarks.core.interfaces import check_name
from benchmarks.doctor.child import Job, Run, all_reports, judge_ranks, own_environment, run_together
from benchmarks.doctor.finding import Finding, failed, not_run, ok, warning
from resireduce.errors import ConfigError

NAME = "horovod"
RANKS = 2
AGAIN = "horovodrun --check-build and --verbose say more; build it again: make horovod, or the image"
SHOWN = (("mpi", "MPI"), ("gloo", "Gloo"), ("nccl", "NCCL"))
WITH_NCCL = "image cuda12, or build Horovod with HOROVOD_GPU_OPERATIONS=NCCL"


def check(
    timeout_seconds: float,
    gpus: int = 0,
    installed: bool | None = None,
    run: Run = run_together,
) -> list[Finding]:
    """Return one finding. gpus: number that torch sees; if there are any, Horovod should have NCCL."""
    if not (find_spec("horovod") is not None if installed is None else installed):
        return [not_run(NAME, "it is not installed (make horovod); cells over torch.distributed do without")]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(RANKS), "-H", f"localhost:{RANKS}"]
    rank = [sys.executable, "-m", "benchmarks.doctor.trial_ranks", "horovod"]
    environment = own_environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    ended = run([Job([*launcher, *rank], environment)], timeout_seconds)
    what = f"all-reduce of {RANKS} processes over Horovod (Gloo)"
    problem = judge_ranks(NAME, what, ended, RANKS, AGAIN)
    if problem:
        return [_nameless() or problem]
    built = all_reports(ended)[0]["built"]
    parts = ", ".join(f"{name} {'yes' if built[key] else 'no'}" for key, name in SHOWN)
    if gpus and not built["nccl"]:
        return [warning(NAME, f"built without NCCL ({parts}): gradients would go by way of the CPU", WITH_NCCL)]
    return [ok(NAME, f"{what} is right; built with {parts}")]


def _nameless() -> Finding | None:
    """Return the failure if the machine's own name has no address."""
    try:
        check_name()
    except ConfigError as error:
        said, _, cure = str(error).partition("; ")
        return failed(NAME, said, cure)
    return None
