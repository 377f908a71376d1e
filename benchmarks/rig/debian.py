"""Programs that a machine lacks, unpacked from Debian's packages into the user's cache; the machine is not changed.

`python -m benchmarks.rig.debian` fetches those of the Slurm cluster for tests (slurm/testbed). Imports no torch.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.content import text_hash
from benchmarks.core.files import alone
from benchmarks.core.paths import cache_folder
from benchmarks.core.programs import output_of
from resireduce.errors import ConfigError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Apt:
    """apt with lists and cache in `folder`, and with the machine's own sources or one other suite of Debian's archive.

    Raises ConfigError if there is no apt, or if Debian's archive cannot be reached.
    """

    def __init__(self, folder: Path, suite: str | None = None, components: str = "main"):
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise ConfigError("Debian's packages: there is no apt-get and dpkg-deb here; install the program itself")
        self._folder, self._options = folder, ["-o", "APT::Sandbox::User=root"]
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        places: dict[str, Path | str] = {
            "Dir::State::Lists": folder / "lists",
            "Dir::Cache::archives": folder / "archives",
        }
        places |= {"Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": ""}
        if suite is not None:
            source = folder / "sources.list"
            source.write_text(f"deb [signed-by={KEYRING}] {archive()} {suite} {components}\n", encoding="utf-8")
            places |= {"Dir::Etc::SourceList": source, "Dir::Etc::SourceParts": "/dev/null"}
            places |= {"Dir::State::status": "/dev/null"}  # nothing counts as installed: a closure with its own libc
        self._options += [part for name, value in places.items() for part in ("-o", f"{name}={value}")]
        self._call("update", "-o", "APT::Update::Error-Mode=any")

    def fetch(self, packages: Sequence[str], dependencies: bool = True) -> list[Path]:
        """Return the files of packages, and of their dependencies that are not installed."""
        if dependencies:
            self._call("install", "--no-install-recommends", "--assume-yes", "--download-only", *packages)
            return sorted((self._folder / "archives").glob("*.deb"))
        self._call("download", *packages, cwd=self._folder)
        return sorted(self._folder.glob("*.deb"))

    def _call(self, *arguments: str, cwd: Path | None = None) -> None:
        command = ["apt-get", *self._options, "-qq", *arguments]
        try:
            output_of(command, cwd=cwd)
        except ConfigError as error:
            raise ConfigError(f"Debian's packages: {arguments[0]}: {error}; look at the network and the disk") from None


def archive() -> str:
    """Return the address of the Debian mirror that this machine uses. Raises ConfigError if it uses none."""
    release = ""
    with suppress(OSError):
        release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    form = "$(RELEASE) $(REPO_URI)"
    asked = subprocess.run(["apt-get", "indextargets", "--format", form], capture_output=True, text=True, check=False)
    for line in asked.stdout.splitlines():
        suite, _, address = line.partition(" ")
        if suite == release and address.rstrip("/").endswith("/debian"):
            return address
    raise ConfigError("Debian's packages: this machine has no source of Debian's archive; install the program itself")


def unpack(files: Sequence[Path], root: Path) -> None:
    """Unpack packages below root, without running any of their scripts; their bin and lib are in usr too."""
    for file in files:
        subprocess.run(["dpkg-deb", "--extract", str(file), str(root)], check=True)
    for name in ("bin", "sbin", "lib"):
        if (root / name).is_dir():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)


def relocate(root: Path, programs: Sequence[str], final: Path) -> None:
    """Make programs below root run with the libraries there, and not the machine's, once root is renamed to `final`.

    `patchelf` must be among the unpacked programs.
    """
    libraries = f"usr/lib/{platform.machine()}-linux-gnu"
    loader = next((root / libraries).glob("ld-linux-*.so.*")).name
    patchelf = [str(root / libraries / loader), "--library-path", str(root / libraries), str(root / "usr/bin/patchelf")]
    for program in programs:
        file = (root / program).resolve()
        # RPATH, not RUNPATH: it applies to the libraries of libraries too.
        patch = ["--set-interpreter", str(final / libraries / loader), "--force-rpath"]
        subprocess.run([*patchelf, *patch, "--set-rpath", str(final / libraries), str(file)], check=True)


@dataclass(frozen=True)
class Tool:
    """The source of a program that the machine lacks."""

    packages: tuple[str, ...]
    suite: str | None = None
    """Suite of Debian; None: the machine's own sources, and its libraries."""
    relocated: tuple[str, ...] = ()
    """Programs that must run with the libraries unpacked beside them."""
    moved: tuple[str, ...] = ()
    """Folders that the programs look for below usr, wherever that is."""


DOCKER = Tool(("docker.io", "runc", "containerd"))
# Apptainer is only in Debian unstable. Its starter uses the prefix usr/lib, the command usr.
APPTAINER = Tool(
    ("apptainer", "squashfuse", "patchelf"),
    "sid",
    (
        "usr/bin/apptainer",
        "usr/lib/x86_64-linux-gnu/apptainer/bin/starter",
        "usr/bin/mksquashfs",
        "usr/bin/unsquashfs",
        "usr/bin/squashfuse",
        "usr/bin/squashfuse_ll",
    ),
    ("etc", "var"),
)
TOOLS = {"docker": DOCKER, "dockerd": DOCKER, "mmdebstrap": Tool(("mmdebstrap",)), "apptainer": APPTAINER}
FOLDERS = ("usr/bin", "usr/sbin")


def fetched_command(name: str) -> list[str] | None:
    """Return the beginning of a command line that calls a program of TOOLS, fetched if it is missing.

    None for other programs. Raises ConfigError, one line with the cure, if it cannot be fetched.
    """
    if name not in TOOLS:
        return None
    root = unpacked(TOOLS[name])
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(str(root / folder) for folder in FOLDERS)])
    libraries = os.pathsep.join(sorted(str(folder) for folder in root.glob("usr/lib/*-linux-gnu*")))
    own = [f"LD_LIBRARY_PATH={libraries}"] if libraries and not TOOLS[name].relocated else []
    found = (root / folder / name for folder in FOLDERS)
    return next((["env", f"PATH={path}", *own, str(file)] for file in found if file.exists()), None)


def unpacked(tool: Tool) -> Path:
    """Return the folder of a tool's packages, fetched if it is missing. One process fetches, others wait for it."""
    root = cache_folder() / "tools" / f"{tool.packages[0]}-{text_hash(repr(tool))}"
    with alone(root.parent / ".lock"):
        if not root.exists():
            print(f"Fetching {tool.packages[0]} from Debian's packages, once ...", file=sys.stderr, flush=True)
            _fetch(tool, root)
    return root


def _fetch(tool: Tool, root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root.parent) as folder:
        files, new = Apt(Path(folder) / "apt", tool.suite).fetch(tool.packages), Path(folder) / "root"
        unpack(files, new)
        if tool.relocated:
            relocate(new, tool.relocated, root)
        for name in tool.moved:
            (new / name).rename(new / "usr" / name)
            (new / "usr/lib" / name).symlink_to(Path("..") / name)
        os.replace(new, root)  # last, so that an existing folder is complete


SLURM = ("slurmctld", "slurmd", "slurm-client", "munge", "iproute2")
PROGRAMS = Tool(SLURM)
# Fetch Slurm's packages again: packages fetched on two days may differ in version.
WITH_ACCOUNTING = Tool((*SLURM, "slurmdbd", "mariadb-server"))


def main(arguments: list[str] | None = None) -> int:
    """Print the folder of the programs, fetched if they are not there; its usr is to be laid over the machine's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rig.debian", description=main.__doc__)
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB")
    args = parser.parse_args(arguments)
    tool = WITH_ACCOUNTING if args.accounting else PROGRAMS
    try:
        print(unpacked(tool))
    except ConfigError as error:
        print(f"error: testbed: {', '.join(tool.packages)}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
