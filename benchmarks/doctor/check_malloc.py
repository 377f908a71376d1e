"""Check malloc: whether freed memory returns to the system, in this shell and in ranks of cells.

If not, the resident memory of a process that trains on the CPU shows little of what streamed gradients save. A separate
process does what training does to malloc: it frees a large block, from which glibc's malloc learns to take such blocks
from its heap, then many blocks, with small ones behind them that stay.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.doctor.child import Ended, Job, Run, report, run_together
from benchmarks.doctor.finding import Finding, gibibytes, not_run, ok, warning
from benchmarks.doctor.known_faults import last_words
from benchmarks.launching.processes import MALLOC, with_malloc

NAME = "malloc"
BLOCKS, BLOCK_BYTES = 32, 4 << 20
"""128 MiB, in blocks of the size of a layer."""
LEARNT_FROM_BYTES = 16 << 20
STAYS_BYTES, STAYS = 100 << 10, 16
"""Smaller than any but a tiny threshold; and more of them than there are holes before the blocks."""
MOST_SHARE = 0.25
"""Largest share of freed memory that may stay resident without a warning."""
COMMAND = (sys.executable, "-m", "benchmarks.doctor.check_malloc")


def check(
    timeout_seconds: float,
    environment: Mapping[str, str] = os.environ,
    run: Run = run_together,
    platform: str = sys.platform,
) -> list[Finding]:
    """Return one finding: a warning if ranks of cells keep freed memory. `environment` is that of this shell."""
    if platform != "linux":
        return [not_run(NAME, f"{platform} does not say what is resident")]
    given = [environment, with_malloc(environment, environment)]
    shell, cells = (_kept(run([Job(COMMAND, dict(each))], timeout_seconds)[0]) for each in given)
    if isinstance(shell, str) or isinstance(cells, str):
        return [not_run(NAME, f"memory was not measured: {shell if isinstance(shell, str) else cells}")]
    freed, most = BLOCKS * BLOCK_BYTES, MOST_SHARE * BLOCKS * BLOCK_BYTES
    said = f"of {gibibytes(freed)} freed, {gibibytes(cells)} stay resident in ranks of cells, {gibibytes(shell)} here"
    if cells > most:
        own = [name for name in MALLOC if name in environment]
        cure = f"unset {' '.join(own)}" if own else "another allocator is at work: unset LD_PRELOAD"
        return [warning(NAME, f"{said}: what is resident hides what is saved", cure)]
    if shell > most:
        settings = " ".join(f"{name}={value}" for name, value in MALLOC.items())
        return [ok(NAME, f"{said}: for training of your own, on CPUs, set {settings}")]
    return [ok(NAME, said)]


def _kept(ended: Ended) -> int | str:
    """Return the bytes that stayed resident, or why they are not known."""
    reports = ended.reports()
    return int(reports[-1]["kept_bytes"]) if reports else last_words(ended.output)


def kept_bytes() -> int:
    """Fill and free blocks with the C library's own calls; return how much more memory is resident than before."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    library.free(library.malloc(LEARNT_FROM_BYTES))
    before = _resident_bytes()
    blocks = [library.malloc(BLOCK_BYTES) for _ in range(BLOCKS)]
    for block in blocks:
        library.memset(block, 1, BLOCK_BYTES)
    for _ in range(STAYS):  # the last lies behind them, so that the heap cannot shrink from its end
        library.malloc(STAYS_BYTES)
    for block in blocks:
        library.free(block)
    return max(0, _resident_bytes() - before)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    report({"kept_bytes": kept_bytes()})
