"""Where a result comes from: code, versions, machine. Imports no torch."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "transformers", "scikit-learn", "snakemake", "resireduce")
ROOT = Path(__file__).parents[2]


def provenance() -> dict[str, Any]:
    """Commit, versions and machine; what cannot be found out is None."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if (changes := _git("status", "--porcelain")) is None else bool(changes),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "device": "cpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
