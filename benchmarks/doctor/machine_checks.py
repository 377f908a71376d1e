"""Checks of the machine and its packages: versions, folders, room, memory."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.core.requirements import Pin, read_lock
from benchmarks.doctor.finding import (
    MORE_SHARED_MEMORY,
    WRITABLE_HOME,
    Finding,
    failed,
    gibibytes,
    not_run,
    ok,
    warning,
)
from benchmarks.doctor.gpu_checks import PROBE, Facts
from benchmarks.launching.processes import CGROUPS, MOUNT, memory_groups
from resireduce.errors import ConfigError

# --- packages ---

PYTHON = (3, 11)
TORCH = ((2, 9), (2, 15))
"""The oldest torch, as in pyproject.toml, and the newest tested, as in `resireduce.private`; a test compares them."""
LOCK = Path("/opt/resireduce/requirements.lock")
"""Left in an image by its build: the packages that it was made of."""
SHOWN = 3


def check_packages(facts: Facts, lock: Path = LOCK, python: tuple[int, ...] = sys.version_info[:3]) -> list[Finding]:
    """Return one finding on the versions, and one on the lock."""
    return [_versions(facts, python), check_lock(lock)]


def _versions(facts: Facts, python: tuple[int, ...]) -> Finding:
    shown = ".".join(map(str, python))
    if python[:2] < PYTHON:
        return failed("packages", f"Python {shown}; 3.11 or newer is needed", "make PYTHON=python3.11, or the image")
    if facts.error:
        return failed("packages", facts.error, PROBE)
    if facts.torch is None:
        cure = "rm -rf .venv && make .venv/installed, or the image"
        return failed("packages", f"torch cannot be loaded: {facts.torch_error}", cure)
    major, minor = (int(number) for number in facts.torch.split(".")[:2])
    low, high = (".".join(map(str, bound)) for bound in TORCH)
    if (major, minor) < TORCH[0]:
        return failed("packages", f"torch {facts.torch}; {low} or newer is needed", f"pip install 'torch>={low}'")
    if (major, minor) > TORCH[1]:
        newer = f"torch {facts.torch} is newer than {high}, the newest tested"
        return warning("packages", newer, f"if something fails, pip install 'torch~={high}.0'")
    import resireduce

    return ok("packages", f"Python {shown}, torch {facts.torch}, resireduce {resireduce.__version__}")


def check_lock(lock: Path, installed: Callable[[str], str] = version) -> Finding:
    """Compare the installed packages with the lock; local version parts count only if the lock has them."""
    if not lock.exists():
        return not_run("packages", f"no {lock}: this is not an image of the suite")
    try:
        pins = read_lock(lock)
    except ConfigError as error:
        return failed("packages", str(error), "build the image again")
    if other := [text for pin in pins if (text := _difference(pin, installed))]:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        detail = f"not those of {lock}: {', '.join(other[:SHOWN])}{more}"
        cure = "unset PYTHONPATH and PYTHONUSERBASE, apptainer exec --no-home; or build again"
        return failed("packages", detail, cure)
    return ok("packages", f"all {len(pins)} are those of {lock}")


def _difference(pin: Pin, installed: Callable[[str], str]) -> str | None:
    try:
        found = installed(pin.name)
    except PackageNotFoundError:
        return f"{pin.name} is missing"
    return None if pin.version in (found, found.split("+")[0]) else f"{pin.name} {found} instead of {pin.version}"


# --- disk ---


def existing(path: Path) -> Path:
    """Return the folder, or its nearest existing parent, in which it would be made; or a file that is in the way."""
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def why_not_writable(folder: Path) -> str | None:
    """Return why a folder cannot be written, by trying: a mount may be read-only, or a quota used up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"doctor")
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_bytes(folder: Path) -> int:
    """Return the free bytes for users other than root."""
    return shutil.disk_usage(folder).free


GIB = 1 << 30


def judge_room(check: str, has: str, room: int, least: int, enough: int, need: str, cure: str) -> Finding:
    """Judge bytes: with less than `least` cells fail, with less than `enough` some do, as `need` says."""
    if room < least:
        return failed(check, f"{has}, {gibibytes(least)} is the least", cure)
    if room < enough:
        return warning(check, f"{has}, {need} {gibibytes(enough)}", cure)
    return ok(check, has)


def check_disk(results: Path, free: Callable[[Path], int] = free_bytes) -> list[Finding]:
    """Return one finding on the folder for results, and one on that for temporary files."""
    # gpt2-large: 774 M parameters, 12 bytes each with AdamW's states; two exist while one is being written.
    need, cure = "two checkpoints of gpt2-large would take", "--results DIR on a larger disk"
    found = [_disk("results", results, GIB, 18 * GIB, need, cure, free)]
    with suppress(FileNotFoundError):  # reported by check home
        folder = Path(tempfile.gettempdir())
        # The largest package, torch for CUDA, is downloaded and unpacked there while .venv or an image is made.
        need = "packages of .venv would take"
        found.append(_disk("temporary", folder, GIB // 8, 2 * GIB, need, "export TMPDIR=FOLDER", free))
    return found


def _disk(
    what: str, wanted: Path, least: int, enough: int, need: str, cure: str, free: Callable[[Path], int]
) -> Finding:
    folder = existing(wanted)
    if refused := why_not_writable(folder):
        bind = "docker or podman run -v FOLDER:FOLDER -w FOLDER, apptainer exec --bind FOLDER"
        return failed("disk", f"{what}: {folder} cannot be written: {refused}", f"{cure}; {bind}")
    room = free(folder)
    return judge_room("disk", f"{what}: {gibibytes(room)} free in {folder}", room, least, enough, need, cure)


# --- home ---

WRITABLE_TEMPORARY = "docker or podman run --tmpfs /tmp, apptainer exec --writable-tmpfs, or export TMPDIR=FOLDER"


def check_home(
    environment: Mapping[str, str] = os.environ, temporary: Callable[[], str] = tempfile.gettempdir
) -> list[Finding]:
    """Return one finding for HOME, one for the temporary folder."""
    home = environment.get("HOME")
    if not home:
        first = failed("home", "HOME is not set", WRITABLE_HOME)
    elif refused := "it is no folder" if not Path(home).is_dir() else why_not_writable(Path(home)):
        first = failed("home", f"HOME, {home}, cannot be written: {refused}", WRITABLE_HOME)
    else:
        first = ok("home", f"HOME, {home}, can be written")
    try:
        folder = temporary()
    except FileNotFoundError as error:  # tempfile has tried all of them
        return [first, failed("home", str(error), WRITABLE_TEMPORARY)]
    if refused := why_not_writable(Path(folder)):
        return [first, failed("home", f"temporary folder {folder} cannot be written: {refused}", WRITABLE_TEMPORARY)]
    return [first, ok("home", f"temporary folder {folder} can be written")]


# --- memory ---

MEMINFO = Path("/proc/meminfo")
LEAST_MEMORY_BYTES = 2 << 30
"""For two ranks of a cell of the smoke matrix, including torch, and Snakemake beside them."""
ENOUGH_MEMORY_BYTES = 12 << 30
"""The amount that docs/artifact.md gives for `make run RUN=full-size`."""
NEW_FILES, OLD_FILES = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""Files with limit and usage of a control group, version 2 and version 1."""
MORE = "another machine; under Slurm --mem=16G, docker or podman run --memory=16g"


def check_memory(meminfo: Path = MEMINFO, cgroups: Path = CGROUPS, mount: Path = MOUNT) -> list[Finding]:
    """Return one finding: the least of the machine's available memory and of what control groups leave."""
    if sys.platform != "linux":
        return [not_run("memory", f"{sys.platform} does not say how much is available")]
    lines = (line.split() for line in meminfo.read_text(encoding="utf-8").splitlines())
    available = next(int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:")
    left = {f"{meminfo}": available, **dict(_left_in_groups(cgroups, mount))}
    where = min(left, key=lambda name: left[name])
    room = left[where]
    has = f"{gibibytes(room)} available{'' if where == str(meminfo) else f' of this job or container ({where})'}"
    need = "models of full size need"
    return [judge_room("memory", has, room, LEAST_MEMORY_BYTES, ENOUGH_MEMORY_BYTES, need, MORE)]


def _left_in_groups(cgroups: Path, mount: Path) -> Iterator[tuple[str, int]]:
    """Yield the memory left by this control group and those above it that have a limit, in both versions.

    In a container the mount is the group itself, while its name may still be the host's; then only the mount counts.
    """
    with suppress(OSError):
        for top, own, is_new in memory_groups(cgroups, mount):
            limit, usage = NEW_FILES if is_new else OLD_FILES
            for folder in (own, *own.parents):
                if folder.is_relative_to(top) and (left := _left(folder / limit, folder / usage)) is not None:
                    yield str(folder), left


def _left(limit: Path, usage: Path) -> int | None:
    """Return the bytes left below the limit. The file cache counts as used there, so more could be had."""
    try:
        most = limit.read_text(encoding="utf-8").strip()
        return None if most == "max" else max(0, int(most) - int(usage.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


# --- shared-memory ---

SHM = Path("/dev/shm")
ENOUGH_SHARED_BYTES = 1 << 30
"""The value that NCCL's user guide (Troubleshooting, Shared memory) gives a container."""
LEAST_SHARED_BYTES = 64 << 20
"""Docker's default for a container. NCCL takes a segment of 4 to 10 MiB for each pair of GPUs without a direct path, so
this is too little for the pairs of four GPUs, and NCCL does not start. Ranks on CPUs take none."""


def check_shared_memory(gpus: int = 0, folder: Path = SHM, free: int | None = None) -> list[Finding]:
    """Return one finding. gpus: number that torch sees; free: bytes to use instead of asking."""
    if not folder.is_dir():
        return [not_run("shared-memory", f"there is no {folder}: not Linux")]
    refused = why_not_writable(folder)
    if refused:
        return [failed("shared-memory", f"{folder} cannot be written: {refused}", MORE_SHARED_MEMORY)]
    room = free_bytes(folder) if free is None else free
    has = f"{gibibytes(room)} free in {folder}"
    if room <= LEAST_SHARED_BYTES and gpus > 1:
        return [failed("shared-memory", f"{has}, too little for NCCL between {gpus} GPUs", MORE_SHARED_MEMORY)]
    if room < ENOUGH_SHARED_BYTES:
        said = f"{has}, NCCL's guide asks for {gibibytes(ENOUGH_SHARED_BYTES)}"
        return [warning("shared-memory", said, MORE_SHARED_MEMORY)]
    return [ok("shared-memory", has)]
