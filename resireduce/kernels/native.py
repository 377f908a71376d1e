"""C code that is compiled when it is first needed; where it cannot be, plain torch gives the same results."""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

SWITCH = "RESIREDUCE_NATIVE"
"""Environment variable: with 0 nothing is compiled."""
FLAGS = (
    *("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    *("-pthread", "-shared", "-fPIC"),
)
"""Sums keep the order and precision in which they are written, so that results are those of the plain form."""
CLONES = '__attribute__((target_clones("avx512f", "avx2", "default")))'
"""FOR_EACH_PROCESSOR in C, where the compiler knows it: code for each processor, chosen when it is loaded."""
SECONDS, PROCESS = 120.0, os.getpid()
SMALLEST = 1 << 18
"""Elements that are worth a thread: starting one takes as long as processing some ten thousand."""
HERE = Path(__file__).parent
KINDS = {"P": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int, "I": ctypes.c_uint32, "f": ctypes.c_float}
"""Arguments of C functions: addresses, of tensors for example, and numbers of 64 and of 32 bits."""
FUNCTIONS = {
    "largest_each": "PqP",
    "add_sent_each": "Pq",
    "sums": "PqiP",
    "mean_norm": "PqfffiP",
    "l1_norms": "PqqiPP",
    "add_crossing": "PqqPqPqPi",
    "cut_crossing": "PqqPqPqPi",
    "encode": "PqiiIPP",
    "decode_add": "PqiiPP",
}
"""By name, without what all begin with, the kinds of their arguments."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled C files of this folder; None without a compiler (`cc`, or what CC names) or by the switch.

    They lie in this folder, if an image was built so, or in the user's cache, under a name that changes with the
    source, so that they are compiled once.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        found = ctypes.CDLL(str(HERE / _name() if (HERE / _name()).is_file() else build(_cache())))
        for name, kinds in FUNCTIONS.items():
            function = getattr(found, f"resireduce_{name}")
            function.argtypes, function.restype = [KINDS[kind] for kind in kinds], ctypes.c_int
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):  # RuntimeError: there is no home directory
        return None
    return _in_team(found)


def _in_team(found: ctypes.CDLL) -> ctypes.CDLL:
    """Return `found`, made to use torch's OpenMP threads, if torch has them.

    These threads spin for some milliseconds after each task, so that other threads would have to share processors with
    them. They do not survive a fork, after which OpenMP would wait for them for ever: then threads are started.
    """
    if os.getpid() != PROCESS:
        return found
    try:
        torchs = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        found.resireduce_use_team(ctypes.cast(torchs.GOMP_parallel, ctypes.c_void_p))
        os.register_at_fork(after_in_child=lambda: found.resireduce_use_team(None))
    except (OSError, AttributeError):  # another system, or torch without OpenMP
        pass
    return found


def _command() -> list[str]:
    clones = CLONES if (os.uname().machine, platform.libc_ver()[0]) == ("x86_64", "glibc") else ""
    return [*(shlex.split(os.environ.get("CC", "")) or ["cc"]), *FLAGS, f"-DFOR_EACH_PROCESSOR={clones}"]


def _name() -> str:
    """Return the name of the file with the compiled code, by all that it depends on."""
    texts = [one.read_text() for one in sorted(HERE.glob("*.[ch]"))]
    told = [*_command(), os.uname().machine, os.uname().sysname, *texts]
    return f"kernels-{hashlib.sha256('/'.join(told).encode()).hexdigest()[:16]}.so"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resireduce"


def build(folder: Path) -> Path:
    """Return the path of the compiled code in `folder`, which is compiled now if it is missing.

    It gets its name last, since another process may compile or load the same file.
    """
    built = folder / _name()
    if not built.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:
            made = Path(room) / built.name
            line = [*_command(), "-o", str(made), *map(str, sorted(HERE.glob("*.c")))]
            subprocess.run(line, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
            made.replace(built)
    return built


def threads(numel: int) -> int:
    """Return the number of threads that process `numel` elements: torch's own number, or fewer for a small tensor."""
    return max(1, min(torch.get_num_threads(), numel // SMALLEST)) if numel >= 2 * SMALLEST else 1


def suits(*tensors: torch.Tensor) -> bool:
    """Return whether compiled code takes `tensors`: contiguous float32 on a CPU."""
    return all(one.dtype == torch.float32 and one.is_cpu and one.is_contiguous() for one in tensors)
