"""Check shared-memory: room in /dev/shm, by which ranks over NCCL and workers of data loaders reach each other."""

from pathlib import Path

from benchmarks.doctor.check_disk import free_bytes, why_not_writable
from benchmarks.doctor.finding import Finding, failed, gibibytes, not_run, ok, warning
from benchmarks.doctor.known_faults import MORE_SHARED_MEMORY

NAME = "shared-memory"
SHM = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30
"""What NCCL's user guide (Troubleshooting, Shared memory) gives a container."""
LEAST_BYTES = 64 << 20
"""What Docker gives a container unless told. NCCL takes a segment of 4 to 10 MiB for each pair of GPUs without a direct
path, so that this is too little for the pairs of four GPUs, and then it does not start. Ranks on CPUs take none."""


def check(gpus: int = 0, folder: Path = SHM, free: int | None = None) -> list[Finding]:
    """Return one finding. gpus: how many torch sees; free: bytes, instead of asking."""
    if not folder.is_dir():
        return [not_run(NAME, f"there is no {folder}: not Linux")]
    refused = why_not_writable(folder)
    if refused:
        return [failed(NAME, f"{folder} cannot be written: {refused}", MORE_SHARED_MEMORY)]
    room = free_bytes(folder) if free is None else free
    has = f"{gibibytes(room)} free in {folder}"
    if room <= LEAST_BYTES and gpus > 1:
        return [failed(NAME, f"{has}, too little for NCCL between {gpus} GPUs", MORE_SHARED_MEMORY)]
    if room < ENOUGH_BYTES:
        return [warning(NAME, f"{has}, NCCL's guide asks for {gibibytes(ENOUGH_BYTES)}", MORE_SHARED_MEMORY)]
    return [ok(NAME, has)]
