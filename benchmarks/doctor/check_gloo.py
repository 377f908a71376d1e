"""Check gloo: two processes add up a vector over torch.distributed, as cells without GPUs do."""

import os
import sys
import tempfile

from benchmarks.doctor.child import Job, Run, judge_ranks, own_environment, run_together
from benchmarks.doctor.finding import Finding, ok
from benchmarks.doctor.known_faults import LOOPBACK

NAME = "gloo"
RANKS = 2


def check(timeout_seconds: float, run: Run = run_together) -> list[Finding]:
    """Return one finding."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.doctor.trial_ranks", "torch", "gloo", os.path.join(folder, "meet")]
        local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        jobs = [Job(command, own_environment(RANK=str(rank), WORLD_SIZE=str(RANKS), **local)) for rank in range(RANKS)]
        ended = run(jobs, timeout_seconds)
    what = f"all-reduce of {RANKS} processes over torch.distributed"
    return [judge_ranks(NAME, what, ended, RANKS, LOOPBACK) or ok(NAME, f"{what} is right")]
