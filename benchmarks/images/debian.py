"""Debian's packages, fetched with apt into a folder of their own: the machine is not changed. Imports no torch."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from resireduce.errors import ConfigError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Apt:
    """apt with lists and cache in `folder`, and with the machine's own sources or one other suite of Debian's archive.

    Raises ConfigError where there is no apt, or where Debian's archive cannot be reached.
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
        """Return the files of packages, and of what they need and is not installed."""
        if dependencies:
            self._call("install", "--no-install-recommends", "--assume-yes", "--download-only", *packages)
            return sorted((self._folder / "archives").glob("*.deb"))
        self._call("download", *packages, cwd=self._folder)
        return sorted(self._folder.glob("*.deb"))

    def _call(self, *arguments: str, cwd: Path | None = None) -> None:
        command = ["apt-get", *self._options, "-qq", *arguments]
        done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, errors="replace")
        if done.returncode:
            said = next(iter(reversed(done.stderr.strip().splitlines())), f"exit status {done.returncode}")
            raise ConfigError(f"Debian's packages: apt-get {arguments[0]}: {said}; look at the network and the disk")


def archive() -> str:
    """Return the address of the mirror of Debian's archive that this machine uses. Raises ConfigError on others."""
    release = _codename()
    form = "$(RELEASE) $(REPO_URI)"
    asked = subprocess.run(["apt-get", "indextargets", "--format", form], capture_output=True, text=True, check=False)
    for line in asked.stdout.splitlines():
        suite, _, address = line.partition(" ")
        if suite == release and address.rstrip("/").endswith("/debian"):
            return address
    raise ConfigError("Debian's packages: this machine has no source of Debian's archive; install the program itself")


def unpack(files: Sequence[Path], root: Path) -> None:
    """Unpack packages below root, without running any of their scripts; what they have in bin or lib is in usr too."""
    for file in files:
        subprocess.run(["dpkg-deb", "--extract", str(file), str(root)], check=True)
    for name in ("bin", "sbin", "lib"):
        if (root / name).is_dir():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)


def relocate(root: Path, programs: Sequence[str], final: Path) -> None:
    """Make programs below root run with the libraries there, once root is called `final`, whatever the machine's are.

    `patchelf` must be among what was unpacked.
    """
    libraries = f"usr/lib/{platform.machine()}-linux-gnu"
    loader = next((root / libraries).glob("ld-linux-*.so.*")).name
    patchelf = [str(root / libraries / loader), "--library-path", str(root / libraries), str(root / "usr/bin/patchelf")]
    for program in programs:
        file = (root / program).resolve()
        # RPATH, not RUNPATH: it holds for the libraries of libraries too.
        patch = ["--set-interpreter", str(final / libraries / loader), "--force-rpath"]
        subprocess.run([*patchelf, *patch, "--set-rpath", str(final / libraries), str(file)], check=True)


def cache_folder() -> Path:
    """Return the user's folder for what can be had again: $XDG_CACHE_HOME/resireduce, else ~/.cache/resireduce.

    Raises ConfigError for a user without a home.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):  # others are to be ignored, says the XDG base directory specification
        return Path(home) / "resireduce"
    try:
        return Path.home() / ".cache/resireduce"
    except RuntimeError:
        raise ConfigError("HOME: this user has none; set it, or XDG_CACHE_HOME, to a folder of yours") from None


def _codename() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""
