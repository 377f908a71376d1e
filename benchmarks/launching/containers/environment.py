"""What of the host a container has: folders and files under the same paths, and variables, of a list."""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from resireduce.errors import ConfigError

TMP = Path("/tmp")


@dataclass(frozen=True)
class Bind:
    """One folder or file, which exists."""

    path: Path
    """Absolute."""
    writable: bool = False
    target: Path | None = None
    """Where in the container; None: where it is on the host."""

    def option(self) -> str:
        """The value of --mount, which docker, podman and apptainer read as a line of CSV: colons mean nothing in it."""
        line = io.StringIO()
        fields = ["type=bind", f"source={self.path}", f"destination={self.target or self.path}"]
        csv.writer(line, lineterminator="").writerow(fields if self.writable else [*fields, "readonly"])
        return line.getvalue()


def bind_all(
    writable: Iterable[Path | None], readable: Iterable[Path | None], variables: Mapping[str, str]
) -> tuple[Bind, ...]:
    """Return the binds of these paths as far as they exist, and of the scratch folder TMPDIR, the outermost first.

    /tmp itself stays the container's own. Raises ConfigError, one line, for a path that no runtime could be told of.
    """
    scratch = [Path(variables["TMPDIR"])] if variables.get("TMPDIR") else []
    found: dict[Path, bool] = {}
    for paths, may_write in ((readable, False), ([*writable, *scratch], True)):
        for path in paths:
            if path is not None and path.exists() and (there := Path(os.path.abspath(path))) != TMP:
                found[_checked(there)] = may_write
    return tuple(Bind(path, found[path]) for path in sorted(found))


def _checked(path: Path) -> Path:
    if not str(path).isprintable() or '"' in str(path):
        raise ConfigError(
            f"runtime: {str(path)!r} cannot be bound into a container; allowed: printable characters but quotes; "
            "rename it, or take another folder"
        )
    return path


NAMES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RANK",
    "THP_MEM_ALLOC_ENABLE",
    "TMPDIR",
    "TORCH_LOGS",
    "WORLD_SIZE",
)
PREFIXES = ("GLOO_", "HOROVOD_", "MALLOC_", "MASTER_", "NCCL_", "OMPI_", "PMIX_", "PMI_", "RESIREDUCE_", "SLURM_")
"""Which rank this is, how ranks find each other, and what changes memory, speed or results."""
CLIENT_NAMES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TERM", "USER", "XDG_RUNTIME_DIR")
CLIENT_PREFIXES = ("APPTAINER_", "http_", "https_")
"""What apptainer itself needs. It gives HOME and PATH of the host to no container."""


def passed(variables: Mapping[str, str]) -> list[str]:
    """Return the names of these variables that a container gets. PATH, PYTHONPATH and LD_LIBRARY_PATH never are.

    TMPDIR is, if the folder is bound: `Bind` of `benchmarks.launching.containers.environment`.
    """
    return sorted(name for name in variables if name in NAMES or name.startswith(PREFIXES))


def for_apptainer(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to call apptainer in: it passes all of it on, so it must not be more than is meant.

    --cleanenv would pass nothing, not even what srun and mpirun say to each rank: each would take itself for rank 0.
    """
    own = {name for name in variables if name in CLIENT_NAMES or name.startswith(CLIENT_PREFIXES)}
    return {name: variables[name] for name in sorted(own | set(passed(variables)))}
