"""Check nccl: that torch and Horovod use the same NCCL, and that an all-reduce over it is right."""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.doctor.check_gpu import CUDA_BUILD
from benchmarks.doctor.child import Job, Run, judge_ranks, own_environment, run_together, run_torch_ranks
from benchmarks.doctor.finding import Finding, absent, failed, ok, warning
from benchmarks.doctor.known_faults import explain, last_words
from benchmarks.doctor.machine_facts import Facts

NAME = "nccl"
LINK = "build Horovod with HOROVOD_NCCL_LINK=SHARED against the NCCL of torch, as image cuda12 does"
DEBUG = "NCCL_DEBUG=INFO python -m benchmarks doctor --only nccl says more"


def check(facts: Facts, timeout_seconds: float, needed: bool = False, run: Run = run_together) -> list[Finding]:
    """Return a finding on the libraries and one on the all-reduce. needed: a missing GPU is a failure."""
    if facts.error or facts.nccl is None:
        torch = f"torch {facts.torch}" if facts.torch else "torch"
        return [absent(NAME, facts.error or f"{torch} is without NCCL", CUDA_BUILD, needed)]
    return [_libraries(timeout_seconds, run), _all_reduce(facts, timeout_seconds, needed, run)]


def _libraries(timeout_seconds: float, run: Run) -> Finding:
    command = [sys.executable, "-m", "benchmarks.doctor.probe_child", "libraries"]
    (ended,) = run([Job(command, own_environment())], timeout_seconds)
    reports = ended.reports()
    if reports:
        return one_nccl(reports[-1])
    said = last_words(ended.output) if ended.code else f"no answer in {timeout_seconds:g} s"
    known = explain(ended.output)
    return failed(NAME, f"torch and Horovod in one process: {said}", known.cure if known else LINK)


def one_nccl(found: dict[str, Any]) -> Finding:
    """Judge which libraries the probe found loaded in one process."""
    loaded, horovod, torch = found["loaded"], found["horovod"], _dotted(found["torch"])
    if len(loaded) > 1:
        return failed(NAME, f"two are loaded into one process: {', '.join(loaded)}", LINK)
    if found["horovod_error"]:
        known = explain(found["horovod_error"])
        cure = known.cure if known else "build Horovod again: make horovod, or the image"
        return failed(NAME, f"Horovod cannot be loaded: {found['horovod_error']}", cure)
    if horovod and horovod["nccl"] and not horovod["dynamic"]:
        return failed(NAME, f"Horovod has an NCCL {_dotted(horovod['nccl'])} of its own beside torch's {torch}", LINK)
    if horovod and horovod["nccl"] and horovod["nccl"] != found["torch"]:
        return failed(NAME, f"Horovod is built with {_dotted(horovod['nccl'])}, torch with {torch}", LINK)
    other = {path: version for path, version in loaded.items() if version not in (None, found["torch"])}
    if other:
        path, version = next(iter(other.items()))
        detail = f"torch is built with {torch}, but {path} is {_dotted(version)}"
        return warning(NAME, detail, "unset LD_LIBRARY_PATH and LD_PRELOAD, so that torch finds its own")
    where = next((Path(path).name for path in loaded), "within torch")
    both = "torch and Horovod" if horovod and horovod["nccl"] else "torch"
    return ok(NAME, f"{torch} ({where}), one for {both}")


def _all_reduce(facts: Facts, timeout_seconds: float, needed: bool, run: Run) -> Finding:
    if not facts.gpus:
        return absent(NAME, "all-reduce: torch sees no GPU", "see check gpu", needed)
    ranks = min(2, len(facts.gpus))
    ended = run_torch_ranks("nccl", ranks, timeout_seconds, run, NCCL_DEBUG=os.environ.get("NCCL_DEBUG", "WARN"))
    what = f"all-reduce over {ranks} GPU{'s' if ranks > 1 else ''}"
    return judge_ranks(NAME, what, ended, ranks, DEBUG) or ok(NAME, f"{what} is right")


def _dotted(version: list[int]) -> str:
    return ".".join(map(str, version))
