"""Check packages: Python, torch and resireduce; in an image, that they match its lock."""

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.core.requirements import Pin, read_lock
from benchmarks.doctor.finding import Finding, failed, not_run, ok
from benchmarks.doctor.machine_facts import PROBE, Facts
from resireduce.errors import ConfigError

NAME = "packages"
PYTHON = (3, 11)
TORCH = ((2, 9), (2, 14))
"""Lower bound (inclusive) and upper bound (exclusive), as in pyproject.toml; a test compares them."""
LOCK = Path("/opt/resireduce/requirements.lock")
"""Left in an image by its build: the packages that it was made of."""
SHOWN = 3


def check(facts: Facts, lock: Path = LOCK, python: tuple[int, ...] = sys.version_info[:3]) -> list[Finding]:
    """Return one finding on the versions, and one on the lock."""
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
    """Compare the installed packages with the lock; local version parts count only if the lock has them."""
    if not lock.exists():
        return not_run(NAME, f"no {lock}: this is not an image of the suite")
    try:
        pins = read_lock(lock)
    except ConfigError as error:
        return failed(NAME, str(error), "build the image again")
    other = [text for pin in pins if (text := _difference(pin, installed))]
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        detail = f"not those of {lock}: {', '.join(other[:SHOWN])}{more}"
        return failed(NAME, detail, "unset PYTHONPATH and PYTHONUSERBASE, apptainer exec --no-home; or build again")
    return ok(NAME, f"all {len(pins)} are those of {lock}")


def _difference(pin: Pin, installed: Callable[[str], str]) -> str | None:
    try:
        found = installed(pin.name)
    except PackageNotFoundError:
        return f"{pin.name} is missing"
    return None if pin.version in (found, found.split("+")[0]) else f"{pin.name} {found} instead of {pin.version}"
