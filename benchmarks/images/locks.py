"""`make locks`: resolve the images' packages into lock files, for Python 3.11 on Linux x86-64.

The resolver is uv, which does not read pip's configuration; it is given pip's indexes as options, so that they are set
in one place. None of them is written into a lock file.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.files import save_bytes
from benchmarks.core.paths import ROOT
from benchmarks.launching.containers.entry import read_lock
from resireduce.errors import ConfigError

FOLDER = ROOT / "containers"
TOOLS = ROOT / ".venv-audit" / "bin"
TARGET = ("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28")
OUTPUT = ("--generate-hashes", "--no-annotate", "--no-emit-index-url", "--custom-compile-command=make locks")


@dataclass(frozen=True)
class Lock:
    """A lock file: `containers/NAME.lock`, made from `containers/NAME.in`."""

    stem: str
    suite: bool = False
    """Whether its versions are taken from constraints.txt."""
    dependencies: bool = True
    """Whether it includes dependencies, or just the packages named."""

    @property
    def source(self) -> Path:
        """The file that it is made from."""
        return FOLDER / f"{self.stem}.in"

    @property
    def path(self) -> Path:
        """The lock file itself."""
        return FOLDER / f"{self.stem}.lock"


LOCKS = {
    "cpu": Lock("cpu/requirements", suite=True),
    "cuda12": Lock("cuda12/requirements", suite=True),
    "toolkit": Lock("cuda12/toolkit", dependencies=False),
    "build-tools": Lock("build-tools", suite=True),
    "horovod": Lock("horovod", dependencies=False),
    "audit-tools": Lock("audit-tools"),
}


def compile_lock(lock: Lock, upgrade: bool) -> int:
    """Remake the lock file and return its number of packages; without `upgrade`, versions are kept where possible.

    Raises ConfigError, after the resolver's own message on the error stream; the file is then unchanged.
    """
    resolver = TOOLS / "uv"
    if not resolver.exists():
        raise ConfigError(f"locks: uv is not installed in {TOOLS}; run 'make audit-tools'")
    with tempfile.TemporaryDirectory() as folder:
        output, constraints = Path(folder) / "lock", Path(folder) / "constraints"
        with suppress(ConfigError):  # a broken file is made from scratch
            read_lock(lock.path)
            shutil.copyfile(lock.path, output)
        # torch is left out, since each image has its own build of it.
        pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if lock.suite else []
        constraints.write_text("\n".join(one for one in pinned if not one.startswith("torch==")), encoding="utf-8")
        options = [] if lock.dependencies else ["--no-deps"]
        options += ["--upgrade"] if upgrade else []
        command = [str(resolver), "pip", "compile", "--quiet", "--no-config", *TARGET, *OUTPUT, *indexes(), *options]
        files = ["--constraints", str(constraints), "--output-file", str(output), str(lock.source)]
        done = subprocess.run([*command, *files], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise ConfigError(f"{lock.source.name}: {lock.path} cannot be made; the reason is above")
        pins = read_lock(output)
        save_bytes(output.read_bytes(), lock.path)
    return len(pins)


def indexes() -> list[str]:
    """Return uv's options for the indexes that pip is configured with; certificates are uv's own variables.

    The main index comes first: others may have just one of a version's files, and the lock would lack the other hashes.
    """
    # pip has no public way to ask for what its files and variables set.
    from pip._internal.commands import create_command

    options: Any = create_command("download").parse_args([])[0]
    urls = [options.index_url, *options.extra_index_urls]
    return [
        "--index-strategy=unsafe-first-match",
        *(f"--index={url}" for url in urls[:-1]),
        f"--default-index={urls[-1]}",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Make all lock files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images.locks", description=main.__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    args = parser.parse_args(arguments)
    try:
        for lock in LOCKS.values():
            count = compile_lock(lock, args.upgrade)
            print(f"{lock.path.relative_to(ROOT)}: {count} packages", flush=True)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
