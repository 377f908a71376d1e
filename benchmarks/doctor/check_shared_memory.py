"""Check shared-memory: room in /dev/shm, through which ranks over NCCL and data loader workers communicate."""

from pathlib import Path

from benchmarks.doctor.check_disk import free_bytes, why_not_writable
from benchmarks.doctor.finding import Finding, failed, gibibytes, not_run, ok, warning
from benchmarks.doctor.known_faults import MORE_SHARED_MEMORY

NAME = "shared-memory"
SHM = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30
"""The value that NCCL's user guide (Troubleshooting, Shared memory) gives a container."""
LEAST_BYTES = 64 << 20
"""Docker's default for a container. NCCL takes a segment of 4 to 10 MiB for each pair of GPUs without a direct path, so
this is too little for the pairs of four GPUs, and NCCL does not start. Ranks on CPUs take none."""


def check(gpus: int = 0, folder: Path = SHM, free: int | None = None) -> list[Finding]:
    """Return one finding. gpus: number that torch sees; free: bytes to use instead of asking."""
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
