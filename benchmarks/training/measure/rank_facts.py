"""One rank's facts: the device, libraries and settings that it runs with; what cannot be found out is None."""

import os
import socket
from typing import Any

import torch

from benchmarks.core.interfaces import rate_limit
from benchmarks.core.provenance import image_digest, loaded_files, versions

VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "HOROVOD_AUTOTUNE",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_HIERARCHICAL_ALLGATHER",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "LD_PRELOAD",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RESIREDUCE_DEVICE",
    "THP_MEM_ALLOC_ENABLE",
)
PREFIXES = ("MALLOC_", "NCCL_")


def rank_facts(device: torch.device, process_group: str | None, driver: str | None = None) -> dict[str, Any]:
    """Return the facts of a rank that trains on `device`; `driver` is the version that NVML reports."""
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    return {
        **versions(),
        "host": socket.gethostname(),
        "link_rate": rate_limit(os.environ.get("GLOO_SOCKET_IFNAME")),
        "device": properties.name if properties else "cpu",
        "device_memory_bytes": properties.total_memory if properties else None,
        "gpu_uuid": gpu_uuid(device),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "driver": driver,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "nccl": nccl_version() if on_gpu else None,
        "nccl_path": ", ".join(loaded_files("libnccl.so")) or None,
        "process_group": process_group,
        "allocator": torch.cuda.get_allocator_backend() if on_gpu else None,
        "tf32": bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32) if on_gpu else None,
        "deterministic": ("where available" if torch.is_deterministic_algorithms_warn_only_enabled() else "all")
        if torch.are_deterministic_algorithms_enabled()
        else "no",
        "image_digest": image_digest(),
        "environment": relevant_environment(),
        "threads": torch.get_num_threads(),
    }


def gpu_uuid(device: torch.device) -> str | None:
    """Return CUDA's UUID of a GPU, with the prefix GPU-; for a slice (MIG), its own or its GPU's."""
    if device.type != "cuda":
        return None
    found = str(torch.cuda.get_device_properties(device).uuid)
    return found if found.startswith(("GPU-", "MIG-")) else f"GPU-{found}"


def nccl_version() -> str | None:
    """Return the version of NCCL that torch was built with; None if it was built without."""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):  # a torch built without NCCL
        return None


def relevant_environment() -> dict[str, str]:
    """Return those variables that are set and change memory, speed or results."""
    names = sorted(name for name in os.environ if name in VARIABLES or name.startswith(PREFIXES))
    return {name: os.environ[name] for name in names}
