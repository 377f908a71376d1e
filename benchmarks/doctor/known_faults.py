"""Known failures of other programs: their words, what these mean here, and the cure."""

import re
from dataclasses import dataclass

from benchmarks.doctor.finding import one_line

GPU_ACCESS = "docker run --gpus all, podman run --device nvidia.com/gpu=all, apptainer exec --nv"
MORE_SHARED_MEMORY = "docker or podman run --shm-size=1g, or --ipc=host"
WRITABLE_HOME = "docker or podman run -e HOME=/tmp, apptainer exec --home /tmp, elsewhere export HOME=FOLDER"
LOOPBACK = "ip link set lo up, and let a firewall pass what goes over it (iptables -L)"
SLOWLY = "--timeout 300, if it is only slow: packages on a network's disk"
ECHO = re.compile(r"(?i)non-zero (exit|status)|Process name:|Exit code:")
PREFIX = re.compile(r"^\[\d+\]<std\w+>: ?")


@dataclass(frozen=True)
class Known:
    """A failure that is recognised by words in the output."""

    pattern: str
    meaning: str
    cure: str


FAILURES = (
    Known(r"/\.horovod'", "HOME cannot be written", WRITABLE_HOME),
    Known(r"connect to some hosts via ssh", "localhost is not reached", LOOPBACK),
    Known(r"/dev/shm|shared memory segment|Bus error", "too little shared memory", MORE_SHARED_MEMORY),
    Known(r"undefined symbol", "built for another torch", "build Horovod for this torch: make horovod, or the image"),
    Known(r"driver version is insufficient", "the driver is too old", "see check driver"),
    Known(r"no kernel image is available", "torch has no kernels for this GPU", "see check gpu"),
    Known(r"Duplicate GPU detected", "two ranks on one GPU", "one rank per GPU: set CUDA_VISIBLE_DEVICES for each"),
    Known(r"Permission denied|Read-only file system", "a folder cannot be written", WRITABLE_HOME),
    Known(r"No space left on device", "a disk is full", "see checks disk and shared-memory"),
    Known(r"Insufficient Permissions", "not allowed", "name the slice of the GPU: CUDA_VISIBLE_DEVICES=MIG-..."),
)


def explain(output: str) -> Known | None:
    """Return the known failure that an output shows."""
    return next((known for known in FAILURES if re.search(known.pattern, output)), None)


def last_words(output: str) -> str:
    """Return the line that best explains why a program failed: a Python exception, another error, or the last line.

    Launchers add that a process failed, which is already known, and prefix each line with its rank.
    """
    lines = [PREFIX.sub("", line) for line in output.splitlines() if line.strip(" -=") and not ECHO.search(line)]
    for words in (r"^\w[\w.]*(Error|Exception)\b", r"(?i)error|fail|cannot|unable"):
        found = [line for line in lines if re.search(words, line)]
        if found:
            return one_line(found[-1])
    return one_line((lines or ["it printed nothing"])[-1])
