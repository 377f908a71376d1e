"""The process that queries torch, NVML, NCCL and Horovod. `python -m benchmarks.doctor.probe_child facts|libraries`."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.core.nvml import Nvml, NvmlUnavailable
from benchmarks.core.provenance import MAPS, loaded_files
from benchmarks.doctor.child import report
from benchmarks.doctor.finding import one_line
from resireduce.scheme import load

SIDE = 256
"""Rows and columns of the matrices that each GPU multiplies."""


def facts() -> dict[str, Any]:
    """Return the values of `Facts`."""
    found: dict[str, Any] = {"libcuda": _loads("libcuda.so.1")}
    nvml: Nvml | None = None
    try:
        nvml = Nvml.load()
        found |= {"driver": nvml.driver_version(), "driver_cuda": nvml.cuda_version()}
    except NvmlUnavailable as error:
        found["nvml_error"] = one_line(error)
    found["nvml_library"] = next(iter(loaded("libnvidia-ml.so")), None)
    try:
        import torch
    except Exception as error:
        return found | {"torch_error": one_line(f"{type(error).__name__}: {error}")}
    return found | _torch_facts(torch, nvml)


def _torch_facts(torch: ModuleType, nvml: Nvml | None) -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.version.cuda is None:
        return found
    found |= {
        "nccl": load("benchmarks.training.measure.rank_facts:nccl_version")(),
        "architectures": torch.cuda.get_arch_list(),
    }
    try:
        torch.cuda.init()
    except Exception as error:
        return found | {"no_gpu": one_line(error)}
    return found | {"gpus": [_gpu(torch, nvml, index) for index in range(torch.cuda.device_count())]}


def _gpu(torch: ModuleType, nvml: Nvml | None, index: int) -> dict[str, Any]:
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    found = {"name": properties.name, "memory_bytes": properties.total_memory}
    found |= {"capability": [properties.major, properties.minor], "error": _multiply(torch, device)}
    if nvml is None:
        return found
    try:
        reading = nvml.device(str(properties.uuid), index, os.environ.get("CUDA_VISIBLE_DEVICES")).read()
    except NvmlUnavailable as error:
        return found | {"nvml_error": one_line(error)}
    return found | {"device_reason": reading.device_reason, "process_reason": reading.process_reason}


def _multiply(torch: ModuleType, device: Any) -> str | None:
    """Return why a matrix product of ones is wrong, or None; it leaves a CUDA context, whose memory NVML can find."""
    try:
        ones = torch.ones(SIDE, SIDE, device=device)
        return None if bool((ones @ ones == SIDE).all()) else "a matrix product is wrong"
    except Exception as error:
        return one_line(error)


def libraries() -> dict[str, Any]:
    """Return the NCCL that torch and Horovod load into one process, and the one Horovod was built with."""
    import torch

    found: dict[str, Any] = {"torch": list(torch.cuda.nccl.version()), "horovod": None, "horovod_error": None}
    try:
        import horovod.torch as hvd
    except ModuleNotFoundError as error:
        found["horovod_error"] = None if (error.name or "").startswith("horovod") else one_line(error)
    except Exception as error:
        found["horovod_error"] = one_line(error)
    else:
        code = int(hvd.nccl_built())
        dynamic = any(b"libnccl.so" in Path(path).read_bytes() for path in loaded("horovod/torch/mpi_lib"))
        found["horovod"] = {"nccl": _split(code) if code else None, "dynamic": dynamic}
    paths = loaded("libnccl.so")
    return found | {"loaded": {path: _version_in(path) for path in paths}}


def loaded(name: str, maps: Path = MAPS) -> list[str]:
    """Return the files of a library that are loaded into this process, with links resolved."""
    return list(dict.fromkeys(map(os.path.realpath, loaded_files(name, maps))))


def _version_in(path: str) -> list[int] | None:
    """Return the version that a loaded NCCL reports."""
    code = ctypes.c_int()
    try:
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return None
    return _split(code.value)


def _split(code: int) -> list[int]:
    """Split NCCL's version code: 2.27.5 is 22705; before 2.9, 2.8.3 was 2803 (NCCL's nccl.h, NCCL_VERSION)."""
    large = 10_000 if code >= 10_000 else 1_000
    return [code // large, code % large // 100, code % 100]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


QUESTIONS: dict[str, Callable[[], dict[str, Any]]] = {"facts": facts, "libraries": libraries}

if __name__ == "__main__":
    report(QUESTIONS[sys.argv[1]]())
