"""Check gpu: that torch sees GPUs and has kernels for them, and that a matrix product on each is right."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.doctor.finding import Finding, absent, failed, gibibytes, ok
from benchmarks.doctor.known_faults import GPU_ACCESS, explain
from benchmarks.doctor.machine_facts import PROBE, Facts, Gpu

NAME = "gpu"
CUDA_BUILD = "image cuda12, or a torch built for CUDA"


def check(facts: Facts, needed: bool = False, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return one finding. needed: a missing GPU is a failure."""
    if facts.error:  # even if not needed: a crash or hang here would happen in every rank
        return [failed(NAME, facts.error, PROBE)]
    if facts.torch is None:
        return [absent(NAME, f"torch: {facts.torch_error}", "see check packages", needed)]
    if facts.cuda is None:
        return [absent(NAME, f"torch {facts.torch} is built for CPUs", CUDA_BUILD, needed)]
    if not facts.gpus:
        return [_none(facts, needed, environment.get("CUDA_VISIBLE_DEVICES"))]
    bad = [problem for index, gpu in enumerate(facts.gpus) if (problem := _problem(index, gpu, facts))]
    return bad or [_all_right(facts)]


def _none(facts: Facts, needed: bool, visible: str | None) -> Finding:
    """Return the finding for no GPU; if a driver answers there should be one, or cells would silently use the CPU."""
    if visible is not None:
        cure = "unset CUDA_VISIBLE_DEVICES, or under Slurm ask for a GPU: --gres=gpu:1"
        return absent(NAME, f"torch sees no GPU among CUDA_VISIBLE_DEVICES='{visible}'", cure, needed)
    reason = f"torch sees no GPU: {facts.no_gpu or 'there is none'}"
    answers = facts.libcuda and facts.driver_cuda is not None
    cure = f"see check driver; in a container {GPU_ACCESS}; without need of a GPU RESIREDUCE_DEVICE=cpu"
    return absent(NAME, reason, cure, needed or answers)


def _problem(index: int, gpu: Gpu, facts: Facts) -> Finding | None:
    major, minor = gpu.capability
    name = f"GPU {index}, {gpu.name} (sm_{major}{minor})"
    if not has_kernels(gpu.capability, facts.architectures):
        cure = f"another GPU, or a torch with kernels for sm_{major}{minor}"
        return failed(NAME, f"{name}: torch {facts.torch} has kernels for {' '.join(facts.architectures)} only", cure)
    if gpu.error is None:
        return None
    known = explain(gpu.error)
    cure = known.cure if known else "another GPU or node; nvidia-smi -q and the kernel's log (dmesg) say more"
    return failed(NAME, f"{name}: {gpu.error}", cure)


def _all_right(facts: Facts) -> Finding:
    kinds = Counter((gpu.name, gpu.capability, gibibytes(gpu.memory_bytes)) for gpu in facts.gpus)
    shown = (f"{count} x {name} (sm_{a}{b}, {size})" for (name, (a, b), size), count in kinds.items())
    return ok(NAME, f"{', '.join(shown)}; matrix products are right")


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether code for one of the architectures runs on a GPU of this compute capability."""
    return any(_runs(architecture, capability) for architecture in architectures)


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    """Return whether a GPU runs code of an architecture: machine code (sm_) on its major version from its minor version
    on, PTX (compute_) on any newer GPU.

    Code with a letter (sm_90a) runs only on its own. (CUDA C++ Programming Guide, binary and PTX compatibility.)
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", architecture)
    if not match:
        return False
    own = (int(match[2]), int(match[3]))
    if match[4] or own > capability:
        return own == capability
    return match[1] == "compute" or own[0] == capability[0]
