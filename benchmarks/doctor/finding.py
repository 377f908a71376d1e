"""The finding of a check, one line and its cure; and what is known of the failures of other programs."""

import re
from dataclasses import dataclass

OK, WARNING, FAILED, NOT_RUN = "ok", "warning", "failed", "not run"
STATUSES = (OK, WARNING, FAILED, NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    A warning and a failure have a cure; `not run` has its reason as detail, and never counts as ok.
    """

    check: str
    status: str
    detail: str
    cure: str | None = None


def ok(check: str, detail: str) -> Finding:
    """Return the finding that all is as it should be."""
    return Finding(check, OK, detail)


def warning(check: str, detail: str, cure: str) -> Finding:
    """Return the finding that cells run, but slower, with figures missing, or not all of them."""
    return Finding(check, WARNING, detail, cure)


def failed(check: str, detail: str, cure: str) -> Finding:
    """Return the finding that cells would fail, or train on a device that nobody intended."""
    return Finding(check, FAILED, detail, cure)


def not_run(check: str, reason: str) -> Finding:
    """Return the finding that nothing was checked, and why."""
    return Finding(check, NOT_RUN, reason)


def absent(check: str, reason: str, cure: str, needed: bool) -> Finding:
    """Return the finding that there is no GPU to check: `not run`, or a failure if one is needed."""
    return failed(check, reason, cure) if needed else not_run(check, reason)


def one_line(text: object, longest: int = 200) -> str:
    """Return the text of another program as one line, cut at the end if it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[:longest]}..."


def gibibytes(nbytes: float) -> str:
    """Return bytes in GiB for the screen, or in MiB if there are few."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


# --- known failures ---

GPU_ACCESS = "docker run --gpus all, apptainer exec --nv"
WRITABLE_HOME = "docker run -e HOME=/tmp, apptainer exec --home /tmp, elsewhere export HOME=FOLDER"
WRITABLE_TEMPORARY = "docker run --tmpfs /tmp, apptainer exec --writable-tmpfs, or export TMPDIR=FOLDER"
MORE_SHARED_MEMORY = "docker run --shm-size=1g, or --ipc=host"
LOOPBACK = "ip link set lo up, and let a firewall pass what goes over it (iptables -L)"
SLOWLY = "--timeout 300, if it is only slow: packages on a network's disk"
ECHO = re.compile(r"(?i)non-zero (exit|status)|Process name:|Exit code:")
PREFIX = re.compile(r"^\[\d+\]<std\w+>: ?")
FAILURES = {
    r"/\.horovod'": ("HOME cannot be written", WRITABLE_HOME),
    r"connect to some hosts via ssh": ("localhost is not reached", LOOPBACK),
    r"/dev/shm|shared memory segment|Bus error": (
        "too little shared memory",
        "docker run --shm-size=1g, or --ipc=host",
    ),
    r"undefined symbol": ("built for another torch", "build Horovod for this torch: make horovod, or the image"),
}
"""Failures that words in an output show and do not explain: each with its meaning and cure."""


def explain(output: str) -> tuple[str, str] | None:
    """Return meaning and cure of the known failure that an output shows."""
    return next((known for words, known in FAILURES.items() if re.search(words, output)), None)


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
