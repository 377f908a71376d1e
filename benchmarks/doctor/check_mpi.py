"""Check mpi: that ranks started by MPI find each other, in an image also those that Slurm starts around it."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping

from benchmarks.doctor.child import Ended, Job, Run, all_reports, judge_ranks, own_environment, run_together
from benchmarks.doctor.finding import Finding, failed, not_run, ok
from benchmarks.doctor.known_faults import NO_ROOM, SAME_PMIX, explain

NAME = "mpi"
RANKS = 2
RANK = (sys.executable, "-m", "benchmarks.doctor.trial_ranks", "mpi")
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SAME_MPI = "use the mpirun of the MPI that Horovod is built with: ldd on its mpi_lib says which, PATH which is found"
Which = Callable[[str], str | None]


def check(
    timeout_seconds: float,
    environment: Mapping[str, str] = os.environ,
    which: Which = shutil.which,
    run: Run = run_together,
    root: bool | None = None,
) -> list[Finding]:
    """Return one finding, of the first way of starting ranks that exists here.

    Within a step of several tasks (`srun --mpi=pmix -n2 apptainer exec IMAGE python -m benchmarks doctor`) each task
    checks whether MPI sees the others, so all of them have to run this check. In an allocation `srun` starts two ranks,
    elsewhere `mpirun` does.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        return [_within_step(timeout_seconds, environment, int(tasks), run)]
    if "SLURM_JOB_ID" in environment and which("srun"):
        return [_by_srun(timeout_seconds, environment, run)]
    if mpirun := which("mpirun"):
        return [_by_mpirun(timeout_seconds, mpirun, run, os.geteuid() == 0 if root is None else root)]
    return [not_run(NAME, "neither within a step of several tasks nor in a Slurm job, and there is no mpirun")]


def _within_step(timeout_seconds: float, environment: Mapping[str, str], tasks: int, run: Run) -> Finding:
    ended = run([Job(RANK, {**environment, **QUIET})], timeout_seconds)
    what, reports = f"task {environment.get('SLURM_PROCID')} of {tasks}", all_reports(ended)
    if not reports or ended[0].code != 0:
        problem = judge_ranks(NAME, what, ended, tasks, SAME_PMIX)
        assert problem is not None
        return problem
    rank, size, through = reports[0]["rank"], reports[0]["size"], reports[0]["through"]
    if size != tasks or str(rank) != environment.get("SLURM_PROCID"):
        return failed(NAME, f"{what} is rank {rank} of {size} for {through}: image and host do not meet", SAME_PMIX)
    if not reports[0]["right"]:
        return failed(NAME, f"{what} is rank {rank} of {size} for {through}, but the sum is wrong", SAME_PMIX)
    return ok(NAME, f"{what} is rank {rank} of {size} for {through}, and the sum is right")


def _by_srun(timeout_seconds: float, environment: Mapping[str, str], run: Run) -> Finding:
    command = ("srun", "--overlap", "-N1", f"-n{RANKS}", "--mpi=pmix", *RANK)
    ended = run([Job(command, {**environment, **QUIET})], timeout_seconds)
    if ended[0].code and explain(ended[0].output) is NO_ROOM:  # a job with only one task is no fault
        return not_run(NAME, f"{NO_ROOM.meaning} ({NO_ROOM.cure})")
    return _judge(f"{RANKS} ranks of srun --mpi=pmix", ended, SAME_PMIX)


def _by_mpirun(timeout_seconds: float, mpirun: str, run: Run, root: bool) -> Finding:
    environment = own_environment(**QUIET)
    (version,) = run([Job((mpirun, "--version"), environment)], timeout_seconds)
    # Its libraries may print complaints before its name.
    named = [line.strip() for line in version.output.splitlines() if re.search(r"Open MPI|Open ?RTE|HYDRA|Intel", line)]
    name = named[0] if named else "an unknown mpirun"
    options = ["--oversubscribe", *(["--allow-run-as-root"] if root else [])] if "Open" in name else []
    ended = run([Job((mpirun, *options, "-np", str(RANKS), *RANK), environment)], timeout_seconds)
    return _judge(f"{RANKS} ranks of {name}", ended, SAME_MPI)


def _judge(what: str, ended: list[Ended], cure: str) -> Finding:
    problem = judge_ranks(NAME, what, ended, RANKS, cure)
    if problem:
        return problem
    return ok(NAME, f"{what}: a world of {RANKS} through {all_reports(ended)[0]['through']}, and the sum is right")
