"""Versions inside an image: `python -m benchmarks.images.image_facts`, run in it, prints them as JSON."""

import json
import platform
import shutil
import subprocess

from benchmarks.core.provenance import installed_version


def versions() -> dict[str, str | None]:
    """Return versions by name; None for what is not in the image."""
    import torch

    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "debian": platform.freedesktop_os_release().get("VERSION_ID"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()) if torch.version.cuda else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
        "mpi": mpi_version(),
    }
    return found | {"horovod": installed_version("horovod"), "horovod built with": horovod_parts()}


def mpi_version() -> str | None:
    """Return the first line of mpirun's version output, None without mpirun."""
    if shutil.which("mpirun") is None:
        return None
    return subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def horovod_parts() -> str | None:
    """Return the parts that Horovod was compiled with, None without Horovod."""
    try:
        import horovod.torch as hvd
    except ImportError:
        return None
    parts = {"NCCL": hvd.nccl_built, "MPI": hvd.mpi_built, "Gloo": hvd.gloo_built, "CUDA": hvd.cuda_built}
    return ", ".join(name for name, is_built in parts.items() if is_built())


if __name__ == "__main__":
    print(json.dumps(versions()))
