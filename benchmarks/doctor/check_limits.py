"""Check limits: open files and locked memory of this process."""

import resource

from benchmarks.doctor.finding import Finding, failed, ok, warning

NAME = "limits"
LEAST_FILES, ENOUGH_FILES = 256, 1024
"""A rank has a connection to every other, opens some fifty files of packages, and its data loader passes tensors by
open files; Snakemake has a log for each job. 1024 is Linux' default for a process."""
FILES = "ulimit -n 4096; docker or podman run --ulimit nofile=4096:4096"
ENOUGH_LOCKED_BYTES = 64 << 20
LOCKED = "ulimit -l unlimited; docker or podman run --ulimit memlock=-1"


def check(gpus: int = 0, files: int | None = None, locked_bytes: int | None = None) -> list[Finding]:
    """Return one finding. gpus: with some, NCCL locks memory; files, locked_bytes: limits to use instead of asking."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files is None else files
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if locked_bytes is None else locked_bytes
    many = "unlimited" if files == resource.RLIM_INFINITY else str(files)
    has = f"{many} open files"
    if files != resource.RLIM_INFINITY and files < ENOUGH_FILES:
        least = f"{has}; {ENOUGH_FILES} is what Linux gives"
        return [failed(NAME, least, FILES) if files < LEAST_FILES else warning(NAME, least, FILES)]
    if gpus and locked != resource.RLIM_INFINITY and locked < ENOUGH_LOCKED_BYTES:
        detail = f"{has}, but {locked >> 10} KiB of locked memory: NCCL's guide asks for no limit"
        return [warning(NAME, detail, LOCKED)]
    return [ok(NAME, has)]
