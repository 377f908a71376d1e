"""C code that is compiled when it is first needed; where it cannot be, plain torch and NumPy give the same results."""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from torch import Tensor

SWITCH = "RESIREDUCE_NATIVE"
"""Environment variable: 0 says that nothing is to be compiled."""
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-shared", "-fPIC")
"""No sum is formed in another order or precision than it is written in: results are those of the plain form."""
SECONDS = 60.0


@cache
def library(name: str) -> ctypes.CDLL | None:
    """Return the compiled `name`.c of this folder; None without a compiler (`cc`, or what CC names) or by the switch.

    It lies in the user's cache, under a name that changes with its source, so that it is compiled once.
    """
    source = Path(__file__).with_name(f"{name}.c")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if os.environ.get(SWITCH) == "0" or shutil.which(compiler[0]) is None or not source.is_file():
        return None
    told = [*compiler, *FLAGS, os.uname().machine, os.uname().sysname, source.read_text()]
    built = _cache() / f"{name}-{hashlib.sha256('/'.join(told).encode()).hexdigest()[:16]}.so"
    try:
        if not built.is_file():
            _compile([*compiler, *FLAGS], source, built)
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError):
        return None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resireduce"


def _compile(command: list[str], source: Path, built: Path) -> None:
    """Compile under another name first: another process may be doing the same, or looking."""
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / built.name
        line = [*command, "-o", str(made), str(source)]
        subprocess.run(line, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
        made.replace(built)


def addresses(*tensors: Tensor) -> Iterator[ctypes.c_void_p]:
    """Yield where the elements of `tensors` lie, which must be contiguous tensors of the CPU."""
    for tensor in tensors:
        yield ctypes.c_void_p(tensor.data_ptr())
