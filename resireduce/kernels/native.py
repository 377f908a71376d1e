"""Which compiled code takes a tensor: C on a CPU, compiled when it is first needed, and Triton's kernels on a GPU.

Where there is neither, plain torch gives the same results.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

# --- C on a CPU ---


SWITCH = "RESIREDUCE_NATIVE"
"""Environment variable: with 0 nothing is compiled."""
FLAGS = (
    *("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    *("-shared", "-fPIC"),
)
"""Sums keep the order and precision in which they are written, so that results are those of the plain form."""
CLONES = '__attribute__((target_clones("avx512f", "avx2", "default")))'
"""FOR_EACH_PROCESSOR in C, where the compiler knows it: code for each processor, chosen when it is loaded."""
SECONDS, PROCESS = 120.0, os.getpid()
SMALLEST = 1 << 18
"""Elements that are worth a thread: starting one takes as long as processing some ten thousand."""
HERE = Path(__file__).parent
KINDS = {"P": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int, "I": ctypes.c_uint32}
"""Arguments of C functions: addresses, of tensors for example, and numbers of 64 and of 32 bits."""
FUNCTIONS = {
    "largest_each": "PqP",
    "add_sent_each": "Pq",
    "sums": "PqiP",
    "l1_norms": "PqqiPP",
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
    if os.getpid() == PROCESS:
        try:  # torch's OpenMP threads spin after each task: others would have to share processors with them
            torchs = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
            found.resireduce_use_team(ctypes.cast(torchs.GOMP_parallel, ctypes.c_void_p))
            # They do not survive a fork, after which OpenMP would wait for them for ever.
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


def suits(*tensors: Tensor) -> bool:
    """Return whether compiled code takes `tensors`: contiguous float32 on a CPU."""
    return all(one.dtype == torch.float32 and one.is_cpu and one.is_contiguous() for one in tensors)


# --- Triton on an NVIDIA GPU, once its kernels have passed a check there ---


GPU_SWITCH = "RESIREDUCE_TRITON"
"""Environment variable: with 0 no kernel in Triton is used."""
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 1 << 30
"""The most elements of a tensor: places are numbers of 32 bits. There is no least number: launching a kernel takes
about as long as launching one of torch's operations, of which it replaces several."""
CAPABILITY = (8, 0)
"""The oldest GPUs for which Triton is made: compute capability."""


def in_triton(*tensors: Tensor) -> bool:
    """Return whether Triton's kernels take `tensors`; the first decides by its size and dtype.

    The first call on a GPU compares the kernels with plain torch, which takes seconds; if they fail, it warns, once.
    """
    first = tensors[0]
    if first.device.type != DEVICE or first.dtype not in DTYPES or not 0 < first.numel() <= LARGEST:
        return False
    for one in tensors:  # not by all(): this is asked several times for each gradient
        if type(one) is not Tensor or not one.is_contiguous() or (one is not first and one.device != first.device):
            return False
    return os.environ.get(GPU_SWITCH) != "0" and works(first.device, first.dtype)


@cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether Triton is there, and its kernels give the bits of plain torch on `device` for tensors of `dtype`.

    This compiles them, which takes some 20 s once for a machine. If they fail, a warning says why.
    """
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
    if not capable or find_spec("triton") is None:
        return False
    try:
        from resireduce.kernels.gpu import self_check

        wrong = self_check.differing(device, dtype)
        reason = f"other results than plain torch: {', '.join(wrong)}" if wrong else ""
    except Exception as error:  # no C compiler, no place for compiled code, a version of Triton that is too new, ...
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if reason:
        text = f"kernels in Triton are not used on {device} for {dtype}: {reason}. Plain torch does the same"
        warnings.warn(f"{text}; {GPU_SWITCH}=0 is a way to say so beforehand", stacklevel=4)
    return not reason
