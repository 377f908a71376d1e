"""Check packages: Python, torch and resireduce, and in an image that they are those of its lock."""

import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.doctor.facts import PROBE, Facts
from benchmarks.doctor.finding import Finding, failed, not_run, ok

NAME = "packages"
PYTHON = (3, 11)
TORCH = ((2, 9), (2, 14))
"""From, and before: those of pyproject.toml, which a test compares."""
LOCK = Path("/opt/resireduce/requirements.lock")
"""Left in an image by its build: the packages it was made of."""
LOCKED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)\s*(;)?")
"""Name, version, and the beginning of a condition."""
SHOWN = 3


def check(facts: Facts, lock: Path = LOCK, python: tuple[int, ...] = sys.version_info[:3]) -> list[Finding]:
    """Return one finding for the versions, one for the lock."""
    return [_versions(facts, python), check_lock(lock)]


def _versions(facts: Facts, python: tuple[int, ...]) -> Finding:
    shown = ".".join(map(str, python))
    if python[:2] < PYTHON:
        return failed(NAME, f"Python {shown}; 3.11 or newer is needed", "make PYTHON=python3.11, or the image")
    if facts.error:
        return failed(NAME, facts.error, PROBE)
    if facts.torch is None:
        cure = "rm -rf .venv && make .venv/installed, or the image"
        return failed(NAME, f"torch cannot be loaded: {facts.torch_error}", cure)
    major, minor = (int(number) for number in facts.torch.split(".")[:2])
    low, high = (".".join(map(str, bound)) for bound in TORCH)
    if not TORCH[0] <= (major, minor) < TORCH[1]:
        wanted = f"torch {facts.torch}; at least {low} and less than {high} is needed"
        return failed(NAME, wanted, f"pip install 'torch>={low},<{high}'")
    import resireduce

    return ok(NAME, f"Python {shown}, torch {facts.torch}, resireduce {resireduce.__version__}")


def check_lock(lock: Path, installed: Callable[[str], str] = version) -> Finding:
    """Compare what is installed with the lock; local parts of versions count only where the lock has them."""
    try:
        wanted = read_lock(lock.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return not_run(NAME, f"no {lock}: this is not an image of the suite")
    other = []
    for name, (locked, conditional) in wanted.items():
        try:
            found = installed(name)
        except PackageNotFoundError:
            if not conditional:
                other.append(f"{name} is missing")
            continue
        if locked not in (found, found.split("+")[0]):
            other.append(f"{name} {found} instead of {locked}")
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        detail = f"not those of {lock}: {', '.join(other[:SHOWN])}{more}"
        return failed(NAME, detail, "unset PYTHONPATH and PYTHONUSERBASE, apptainer exec --no-home; or build again")
    return ok(NAME, f"all {len(wanted)} are those of {lock}")


def read_lock(text: str) -> dict[str, tuple[str, bool]]:
    """Return version by name of a requirements file, and whether it is asked for under a condition only."""
    found = (LOCKED.match(line) for line in text.splitlines())
    return {match[1]: (match[2], bool(match[3])) for match in found if match}
