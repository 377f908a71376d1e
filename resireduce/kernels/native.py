"""C code that is compiled when it is first needed; where it cannot be, plain torch and NumPy give the same results."""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

import torch
from torch import Tensor

SWITCH = "RESIREDUCE_NATIVE"
"""Environment variable: with 0 nothing is compiled."""
FLAGS = (
    *("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    *("-pthread", "-shared", "-fPIC"),
)
"""Sums keep the order and precision in which they are written, so that results are those of the plain form."""
CLONES = '__attribute__((target_clones("avx512f", "avx2", "default")))'
"""FOR_EACH_PROCESSOR in C, where the compiler knows it: code for each processor, chosen when it is loaded."""
SECONDS, PROCESS = 60.0, os.getpid()
SMALLEST = 1 << 18
"""Elements that are worth a thread: starting one takes as long as processing some ten thousand."""


@cache
def library(name: str) -> ctypes.CDLL | None:
    """Return the compiled `name`.c of this folder; None without a compiler (`cc`, or what CC names) or by the switch.

    It is kept in the user's cache, under a name that changes with its source, so that it is compiled once.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return _in_team(ctypes.CDLL(str(_built(name))))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):  # RuntimeError: there is no home directory
        return None


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


def _built(name: str) -> Path:
    """Return the path of the compiled code, which is compiled now if it is missing."""
    source = Path(__file__).with_name(f"{name}.c")
    clones = CLONES if (os.uname().machine, platform.libc_ver()[0]) == ("x86_64", "glibc") else ""
    command = [*(shlex.split(os.environ.get("CC", "")) or ["cc"]), *FLAGS, f"-DFOR_EACH_PROCESSOR={clones}"]
    texts = [one.read_text() for one in (source, *sorted(source.parent.glob("*.h")))]
    told = [*command, os.uname().machine, os.uname().sysname, *texts]
    built = _cache() / f"{name}-{hashlib.sha256('/'.join(told).encode()).hexdigest()[:16]}.so"
    if not built.is_file():
        _compile(command, source, built)
    return built


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resireduce"


def _compile(command: list[str], source: Path, built: Path) -> None:
    """Compile under another name first, since another process may compile or load the same file."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / built.name
        line = [*command, "-o", str(made), str(source)]
        subprocess.run(line, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
        made.replace(built)


def addresses(*tensors: Tensor) -> Iterator[ctypes.c_void_p]:
    """Yield the addresses of the elements of `tensors`, which must be contiguous and on a CPU."""
    for tensor in tensors:
        yield ctypes.c_void_p(tensor.data_ptr())


def with_members(function: Any, layout: str) -> Callable[..., int]:
    """Return a form of the C `function`, which takes a pointer to a structure, that takes the members of the structure.

    Members are numbers: for a tensor its address, and 0 for none. ctypes would make an object of each argument, which
    for a dozen takes as long as processing some thousand elements.

    Args:
        function: of a compiled library; it returns an int.
        layout: format of the structure, as for the module struct.
    """
    function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int
    pack = Struct(layout).pack
    return lambda *members: function(pack(*members))


def threads(numel: int) -> int:
    """Return the number of threads that process `numel` elements: torch's own number, or fewer for a small tensor."""
    return max(1, min(torch.get_num_threads(), numel // SMALLEST)) if numel >= 2 * SMALLEST else 1
