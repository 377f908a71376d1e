"""Fetches an image's Python packages by this machine's pip, with its indexes, proxies and certificates.

Also fetches the CUDA compiler for the image's build stage, from one of Debian's packages, if no base has it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core.checks import known_keys
from benchmarks.core.files import file_hash, load_json
from benchmarks.core.paths import cache_folder
from benchmarks.core.requirements import read_lock
from resireduce.errors import ConfigError
from resireduce.scheme import load

GLIBC = (36, 35, 34, 33, 32, 31, 28, 27, 26, 24, 17, 12, 5)
"""Minor versions of glibc 2 that wheels for Debian 12, and older systems, are made for."""
OLD_NAMES = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")
BUILD_CONSTRAINT = "setuptools<81\n"
"""pip runs Horovod's setup.py to learn its name, and that file imports pkg_resources."""


def fetch_wheels(lock: Path) -> Path:
    """Return a folder with exactly the wheels of a lock file, for CPython 3.11 on Linux x86-64.

    Raises ConfigError if the lock does not pin its packages, or if one is not available with these hashes.
    """
    platforms = [*(f"manylinux_2_{minor}_x86_64" for minor in GLIBC), *OLD_NAMES]
    target = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11"]
    target += [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
    return _fetch(lock, [*target, *(f"--platform={name}" for name in platforms)])


def fetch_source(lock: Path) -> Path:
    """Return a folder with the packages of a lock file as source. Raises ConfigError."""
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
        shutil.move(new, folder)  # last, so that an existing folder is complete
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


KEYS = ("package", "version", "suite", "components", "sha256")


def fetch_toolkit(lock: Path) -> Path:
    """Return a folder with the package named in a file {package, version, suite, components, sha256}.

    Raises ConfigError, one line, if it is not available with that hash.
    """
    pin = _read(lock)
    folder = cache_folder() / "wheels" / f"{pin['package']}-{pin['sha256'][:12]}"
    if folder.exists():
        return folder
    print(f"Fetching {pin['package']} {pin['version']} (the CUDA compiler), once ...", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        apt = load("benchmarks.rig.debian:Apt")(Path(temporary) / "apt", pin["suite"], pin["components"])
        (file,) = apt.fetch([f"{pin['package']}={pin['version']}"], dependencies=False)
        if (found := file_hash(file)) != pin["sha256"]:
            raise ConfigError(f"{lock}: {file.name} has the hash {found}, not {pin['sha256']}; see that file's version")
        new = Path(temporary) / "new"
        new.mkdir()
        shutil.move(file, new / file.name)
        shutil.move(new, folder)
    return folder


def _read(lock: Path) -> dict[str, str]:
    try:
        pin = known_keys(str(lock), load_json(lock), KEYS)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{lock}: {error}; it is part of the project: git checkout brings it back") from None
    if missing := [key for key in KEYS if not isinstance(pin.get(key), str)]:
        raise ConfigError(f"{lock}: {', '.join(missing)}: missing or no text; git checkout brings it back")
    return pin
