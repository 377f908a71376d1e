"""What a container gets from the host: folders and files under the same paths, and listed variables."""

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
    """Path in the container; None: the same as on the host."""

    def option(self) -> str:
        """Return the value of --mount; docker, podman and apptainer read it as CSV, so colons have no meaning in it."""
        line = io.StringIO()
        fields = ["type=bind", f"source={self.path}", f"destination={self.target or self.path}"]
        csv.writer(line, lineterminator="").writerow(fields if self.writable else [*fields, "readonly"])
        return line.getvalue()


def bind_all(
    writable: Iterable[Path | None], readable: Iterable[Path | None], variables: Mapping[str, str]
) -> tuple[Bind, ...]:
    """Return the binds of these paths, if they exist, and of the scratch folder TMPDIR, the outermost first.

    /tmp itself stays the container's own. Raises ConfigError, one line, for a path that cannot be bound.
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
"""Variables that say which rank this is and how ranks find each other, or that change memory, speed or results."""
CLIENT_NAMES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TERM", "USER", "XDG_RUNTIME_DIR")
CLIENT_PREFIXES = ("APPTAINER_", "http_", "https_")
"""Variables that apptainer itself needs. It passes the host's HOME and PATH to no container."""


def passed(variables: Mapping[str, str]) -> list[str]:
    """Return the names of these variables that a container gets. PATH, PYTHONPATH and LD_LIBRARY_PATH never are.

    TMPDIR is one of them; `bind_all` binds its folder.
    """
    return sorted(name for name in variables if name in NAMES or name.startswith(PREFIXES))


def for_apptainer(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to call apptainer in: apptainer passes all of it on, so it holds only what is meant.

    --cleanenv would pass nothing, not even the variables that srun and mpirun set: each rank would take itself for 0.
    """
    own = {name for name in variables if name in CLIENT_NAMES or name.startswith(CLIENT_PREFIXES)}
    return {name: variables[name] for name in sorted(own | set(passed(variables)))}
