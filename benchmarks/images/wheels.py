"""The Python packages of an image, fetched by this machine's pip, with its indexes, proxies and certificates."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.files import file_hash
from benchmarks.images.debian import cache_folder
from benchmarks.images.requirements import read_lock
from resireduce.errors import ConfigError

GLIBC = (36, 35, 34, 33, 32, 31, 28, 27, 26, 24, 17, 12, 5)
"""Minor versions of glibc 2 that wheels for Debian 12, and older systems, are made for."""
OLD_NAMES = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")
BUILD_CONSTRAINT = "setuptools<81\n"
"""Horovod's setup.py, which pip runs to learn its name, imports pkg_resources."""


def fetch_wheels(lock: Path) -> Path:
    """Return a folder that holds the wheels of a lock file, and nothing else, for CPython 3.11 on Linux x86-64.

    Raises ConfigError for a lock that does not hold its packages fast, or one that cannot be had with those hashes.
    """
    platforms = [*(f"manylinux_2_{minor}_x86_64" for minor in GLIBC), *OLD_NAMES]
    target = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11"]
    target += [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
    return _fetch(lock, [*target, *(f"--platform={name}" for name in platforms)])


def fetch_source(lock: Path) -> Path:
    """Return a folder that holds the packages of a lock file as source. Raises ConfigError."""
    return _fetch(lock, ["--no-binary=:all:"])


def _fetch(lock: Path, options: Sequence[str]) -> Path:
    pins = read_lock(lock)
    folder = cache_folder() / "wheels" / f"{lock.parent.name}-{lock.stem}-{file_hash(lock)[:12]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"Fetching the {len(pins)} packages of {lock}, once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        constraint, new = Path(temporary) / "constraint.txt", Path(temporary) / "wheels"
        constraint.write_text(BUILD_CONSTRAINT, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--dest", str(new)]
        command += ["--progress-bar=off", *options, "--requirement", str(lock)]
        _call(command, lock, {"PIP_CONSTRAINT": str(constraint)} if "--no-binary=:all:" in options else {})
        shutil.move(new, folder)  # last, so that what is there is whole
    return folder


def _call(command: list[str], lock: Path, settings: dict[str, str]) -> None:
    environment = {**os.environ, **settings}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as pip:
        assert pip.stdout is not None
        lines = []
        for line in pip.stdout:
            lines.append(line.strip())
            if line.lstrip().startswith(("Downloading", "Using cached")):
                print(f"  {line.strip()}", file=sys.stderr, flush=True)
    if pip.returncode:
        said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "nothing")
        raise ConfigError(f"lock: {lock}: pip cannot fetch its packages: {said}; is the lock right? (make locks)")
