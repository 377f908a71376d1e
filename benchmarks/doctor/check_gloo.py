"""Check gloo: two processes add up a vector over torch.distributed, as cells without GPUs do."""

from benchmarks.doctor.child import Run, judge_ranks, run_together, run_torch_ranks
from benchmarks.doctor.finding import Finding, ok
from benchmarks.doctor.known_faults import LOOPBACK

NAME = "gloo"
RANKS = 2


def check(timeout_seconds: float, run: Run = run_together) -> list[Finding]:
    """Return one finding."""
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = run_torch_ranks("gloo", RANKS, timeout_seconds, run, **local)
    what = f"all-reduce of {RANKS} processes over torch.distributed"
    return [judge_ranks(NAME, what, ended, RANKS, LOOPBACK) or ok(NAME, f"{what} is right")]
