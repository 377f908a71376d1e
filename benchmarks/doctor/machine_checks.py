"""Findings of checks, and the checks of the machine: GPUs, packages, folders, room, memory, and ranks that sum up."""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import resireduce
from benchmarks.core.devices import NO_PROCESS
from benchmarks.core.interfaces import check_name
from benchmarks.launching.processes import Ended, Job, Run, run_together
from resireduce.errors import ConfigError

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


# --- what torch and NVML report ---

COMMAND = (sys.executable, "-m", "benchmarks.doctor.in_child", "facts")
PROBE = f"python -m benchmarks.doctor.in_child facts shows how it ends; {SLOWLY}"


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one, that torch sees."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    error: str | None = None
    """Why a small matrix product was wrong."""
    nvml_reason: str | None = None
    """Why NVML does not report its memory, or what this process uses of it."""


@dataclass(frozen=True)
class Facts:
    """Facts about torch and GPUs; None means not known, and `error` says why nothing is."""

    error: str | None = None
    torch: str | None = None
    torch_error: str | None = None
    cuda: str | None = None
    """CUDA version that torch is built for; None if it is built for CPUs."""
    nccl: str | None = None
    """NCCL version that torch is built with."""
    no_gpu: str | None = None
    """Why torch sees no GPU, in CUDA's words."""
    gpus: tuple[Gpu, ...] = ()
    nvml_error: str | None = None
    driver: str | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Facts":
        """Return the facts that the probe reported; JSON has lists for tuples."""
        gpus = tuple(Gpu(**gpu | {"capability": tuple(gpu["capability"])}) for gpu in values.get("gpus", ()))
        return cls(**values | {"gpus": gpus})


def ask(timeout_seconds: float, hide_gpus: bool = False, command: Sequence[str] = COMMAND) -> Facts:
    """Ask the probe; what it could not find out is recorded too. hide_gpus: creates no context on any GPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {}
    (ended,) = run_together([Job(command, os.environ | hidden)], timeout_seconds)
    reports = ended.reports()
    if reports:
        return Facts.from_dict(reports[-1])
    if ended.code is None:
        return Facts(error=f"torch, NVML and the driver did not answer in {timeout_seconds:g} s")
    return Facts(error=f"the process that asks them ended with {ended.code}: {last_words(ended.output)}")


# --- what is wrong ---

CUDA_BUILD = "image cuda12, or a torch built for CUDA"
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Exists wherever the machine has a driver, even in containers without access to its GPUs."""
WITHOUT = "without need of a GPU RESIREDUCE_DEVICE=cpu"


def check_gpu(
    facts: Facts, needed: bool = False, environment: Mapping[str, str] = os.environ, driver: Path = KERNEL_MODULE
) -> list[Finding]:
    """Return one finding, or one for each GPU that fails. needed: a missing GPU is a failure."""
    if facts.error:  # even if not needed: a crash or hang here would happen in every rank
        return [failed("gpu", facts.error, PROBE)]
    if facts.cuda is None:
        reason = f"torch {facts.torch} is built for CPUs" if facts.torch else "there is no torch"
        if driver.exists() and not needed:
            said = f"a driver is here, but {reason}: cells train without a GPU"
            return [warning("gpu", said, f"{CUDA_BUILD}; {WITHOUT}")]
        return [absent("gpu", reason, CUDA_BUILD, needed)]
    if not facts.gpus:
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        among = "" if visible is None else f" among CUDA_VISIBLE_DEVICES={visible!r}"
        reason = f"torch sees no GPU{among}: {facts.no_gpu or 'there is none'}"
        cure = f"in a container {GPU_ACCESS}; under Slurm --gres=gpu:1; {WITHOUT}"
        # Beside a driver there should be one, or cells would silently use the CPU.
        return [absent("gpu", reason, cure, needed or (visible is None and driver.exists()))]
    if bad := [(index, gpu) for index, gpu in enumerate(facts.gpus) if gpu.error]:
        cure = "another GPU or torch; nvidia-smi -q and the kernel's log (dmesg) say more"
        return [failed("gpu", f"GPU {index}, {gpu.name}: {gpu.error}", cure) for index, gpu in bad]
    kinds = Counter((gpu.name, gpu.capability, gibibytes(gpu.memory_bytes)) for gpu in facts.gpus)
    shown = (f"{count} x {name} (sm_{a}{b}, {size})" for (name, (a, b), size), count in kinds.items())
    return [ok("gpu", f"{', '.join(shown)}; matrix products are right")]


UTILITY = f"NVIDIA_DRIVER_CAPABILITIES=compute,utility with {GPU_ACCESS}; after an update of the driver restart"
HOST_PIDS = "docker run --pid=host; apptainer exec without --pid and --containall"


def check_nvml(facts: Facts, needed: bool = False) -> list[Finding]:
    """Return one finding, or one for each GPU with an unreadable value. needed: a missing GPU is a failure."""
    if not facts.gpus:
        return [absent("nvml", "torch sees no GPU", "see check gpu", needed)]
    if facts.nvml_error:
        return [failed("nvml", facts.nvml_error, UTILITY)]
    problems = [
        warning(
            "nvml",
            f"GPU {index}: {gpu.nvml_reason}; the record will have no such figure",
            HOST_PIDS if gpu.nvml_reason == NO_PROCESS else UTILITY,
        )
        for index, gpu in enumerate(facts.gpus)
        if gpu.nvml_reason
    ]
    return problems or [ok("nvml", f"driver {facts.driver}: memory of the device and of processes can be read")]


GIB = 1 << 30


def check_packages(facts: Facts) -> Finding:
    """Say which versions cells run with, or why torch cannot be loaded."""
    if facts.error:
        return failed("packages", facts.error, PROBE)
    if facts.torch is None:
        cure = "rm -rf .venv && make .venv/installed, or the image"
        return failed("packages", f"torch cannot be loaded: {facts.torch_error}", cure)
    here = f"Python {platform.python_version()}, torch {facts.torch}, resireduce {resireduce.__version__}"
    return ok("packages", here)


def judge_room(check: str, has: str, room: int, least: int, enough: int, need: str, cure: str) -> Finding:
    """Judge bytes: with less than `least` cells fail, with less than `enough` some do, as `need` says."""
    if room < least:
        return failed(check, f"{has}, {gibibytes(least)} is the least", cure)
    if room < enough:
        return warning(check, f"{has}, {need} {gibibytes(enough)}", cure)
    return ok(check, has)


def _refusal(folder: Path) -> str | None:
    """Return why a folder cannot be written, by trying: a mount may be read-only, or a quota used up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"doctor")
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
    return None


def check_folders(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return one finding on HOME and one on the temporary folder."""
    home, temporary = environment.get("HOME", ""), tempfile.gettempdir()
    found = []
    for what, folder, cure in (("HOME", home, WRITABLE_HOME), ("temporary folder", temporary, WRITABLE_TEMPORARY)):
        refused = _refusal(Path(folder)) if folder else "is not set"
        found.append(failed("folders", f"{what}: {refused}", cure) if refused else ok("folders", f"{what}: {folder}"))
    return found


def check_disk(results: Path, free: int | None = None) -> Finding:
    """Judge the folder for results, or its nearest parent, in which it would be made; free: instead of asking."""
    path = results.expanduser().absolute()
    folder = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    cure = "--results DIR on a larger disk"
    if refused := _refusal(folder):
        return failed("disk", refused, cure)
    room = shutil.disk_usage(folder).free if free is None else free
    # gpt2-large: 774 M parameters, 12 bytes each with AdamW's states; two exist while one is being written.
    need = "two checkpoints of gpt2-large would take"
    return judge_room("disk", f"{gibibytes(room)} free in {folder}", room, GIB, 18 * GIB, need, cure)


SHM = Path("/dev/shm")
LEAST_SHARED_BYTES = 64 << 20
"""Docker's default for a container. NCCL takes a segment of 4 to 10 MiB for each pair of GPUs without a direct path, so
this is too little for the pairs of four GPUs. Ranks on CPUs take none."""


def check_shared_memory(gpus: int = 0, folder: Path = SHM, free: int | None = None) -> Finding:
    """Judge room for NCCL, which may end without a readable message. gpus: that torch sees; free: instead of asking."""
    if not folder.is_dir():
        return not_run("shared-memory", f"there is no {folder}: not Linux")
    if refused := _refusal(folder):
        return failed("shared-memory", refused, MORE_SHARED_MEMORY)
    room = shutil.disk_usage(folder).free if free is None else free
    least, need = (LEAST_SHARED_BYTES + 1 if gpus > 1 else 0), "NCCL's guide asks for"
    return judge_room(
        "shared-memory", f"{gibibytes(room)} free in {folder}", room, least, GIB, need, MORE_SHARED_MEMORY
    )


MEMINFO = Path("/proc/meminfo")


def check_memory(meminfo: Path = MEMINFO) -> Finding:
    """Judge the machine's available memory. What a job or a container may use of it is not looked for."""
    if not meminfo.exists():
        return not_run("memory", f"there is no {meminfo}: not Linux")
    lines = (line.split() for line in meminfo.read_text(encoding="utf-8").splitlines())
    room = next(int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:")
    # Two ranks of a cell of the smoke matrix, with torch and Snakemake; what docs/artifact.md gives for full-size.
    cure = "another machine"
    return judge_room(
        "memory", f"{gibibytes(room)} available", room, 2 * GIB, 12 * GIB, "models of full size need", cure
    )


LAUNCHERS = ("SLURM_", "PMIX_", "PMI_", "OMPI_", "PRTE_", "HOROVOD_")
"""Prefixes of the variables by which a launcher tells a rank its place."""


def own_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without a launcher's variables, plus `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)} | more


def run_torch_ranks(backend: str, ranks: int, timeout_seconds: float, run: Run, **more: str) -> list[Ended]:
    """Have `ranks` processes sum a vector over torch.distributed, with `more` in their environments."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "benchmarks.doctor.in_child", "torch", backend, os.path.join(folder, "meet")]
        places = ({"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks))
        return run([Job(line, own_environment(**more, **place)) for place in places], timeout_seconds)


def judge_ranks(check: str, what: str, ended: Sequence[Ended], world_size: int, cure: str) -> Finding | None:
    """Return the failure of `world_size` ranks that should have summed their vectors; None if all is right.

    what: what was tried, for the screen. cure: given if no known failure explains it.
    """
    reports = [report for one in ended for report in one.reports()]
    problem = _problem(reports, ended, world_size)
    if problem is None:
        return None
    if known := explain("\n".join(one.output for one in ended)):
        problem, cure = f"{known[0]}: {problem}", known[1]
    return failed(check, f"{what}: {problem}", cure)


def _problem(reports: Sequence[dict[str, Any]], ended: Sequence[Ended], world_size: int) -> str | None:
    if broken := [one.output for one in ended if one.code]:
        return last_words("\n".join(broken))
    ranks, sizes = sorted(report["rank"] for report in reports), {report["size"] for report in reports}
    if any(one.code is None for one in ended):
        return f"not done in time, {len(ranks)} of {world_size} ranks came to the end; {SLOWLY}"
    if ranks != list(range(world_size)) or sizes != {world_size}:
        return f"ranks {ranks} met, of worlds of {sorted(sizes)}, and not {world_size} ranks"
    wrong = [report["rank"] for report in reports if not report["right"]]
    return f"the sum is wrong on rank {wrong[0]}" if wrong else None


# --- gloo ---


def check_gloo(timeout_seconds: float, run: Run = run_together) -> list[Finding]:
    """Return one finding."""
    local = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = run_torch_ranks("gloo", 2, timeout_seconds, run, **local)
    what = "all-reduce of 2 processes over torch.distributed"
    return [judge_ranks("gloo", what, ended, 2, LOOPBACK) or ok("gloo", f"{what} is right")]


# --- horovod ---

AGAIN = "horovodrun --check-build and --verbose say more; build it again: make horovod, or the image"
SHOWN = (("mpi", "MPI"), ("gloo", "Gloo"), ("nccl", "NCCL"))
WITH_NCCL = "image cuda12, or build Horovod with HOROVOD_GPU_OPERATIONS=NCCL"


def check_horovod(
    timeout_seconds: float, gpus: int = 0, installed: bool | None = None, run: Run = run_together
) -> list[Finding]:
    """Return one finding. gpus: number that torch sees; if there are any, Horovod should have NCCL."""
    if not (find_spec("horovod") is not None if installed is None else installed):
        return [not_run("horovod", "it is not installed (make horovod); cells over torch.distributed do without")]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2"]
    rank = [sys.executable, "-m", "benchmarks.doctor.in_child", "horovod"]
    environment = own_environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    ended = run([Job([*launcher, *rank], environment)], timeout_seconds)
    what = "all-reduce of 2 processes over Horovod (Gloo)"
    problem = judge_ranks("horovod", what, ended, 2, AGAIN)
    if problem:
        try:
            check_name()
        except ConfigError as error:  # the machine's own name has no address
            said, _, cure = str(error).partition("; ")
            problem = failed("horovod", said, cure)
        return [problem]
    built = ended[0].reports()[0]["built"]
    parts = ", ".join(f"{name} {'yes' if built[key] else 'no'}" for key, name in SHOWN)
    if gpus and not built["nccl"]:
        return [warning("horovod", f"built without NCCL ({parts}): gradients would go by way of the CPU", WITH_NCCL)]
    return [ok("horovod", f"{what} is right; built with {parts}")]


# --- nccl ---

DEBUG = "NCCL_DEBUG=INFO python -m benchmarks doctor --only nccl says more"


def check_nccl(facts: Facts, timeout_seconds: float, needed: bool = False, run: Run = run_together) -> list[Finding]:
    """Return one finding. needed: a missing GPU is a failure."""
    if facts.error or facts.nccl is None:
        torch = f"torch {facts.torch}" if facts.torch else "torch"
        return [absent("nccl", facts.error or f"{torch} is without NCCL", CUDA_BUILD, needed)]
    if not facts.gpus:
        return [absent("nccl", "all-reduce: torch sees no GPU", "see check gpu", needed)]
    ranks = min(2, len(facts.gpus))
    ended = run_torch_ranks("nccl", ranks, timeout_seconds, run, NCCL_DEBUG=os.environ.get("NCCL_DEBUG", "WARN"))
    what = f"all-reduce over {ranks} GPU{'s' if ranks > 1 else ''}"
    return [judge_ranks("nccl", what, ended, ranks, DEBUG) or ok("nccl", f"{what} is right, by NCCL {facts.nccl}")]
