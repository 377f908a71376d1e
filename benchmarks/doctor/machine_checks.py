"""Checks of the machine: packages, folders, room for results, memory."""

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import resireduce
from benchmarks.doctor.finding import (
    MORE_SHARED_MEMORY,
    WRITABLE_HOME,
    WRITABLE_TEMPORARY,
    Finding,
    failed,
    gibibytes,
    not_run,
    ok,
    warning,
)
from benchmarks.doctor.gpu_checks import PROBE, Facts

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
