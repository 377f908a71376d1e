"""Programs that images need beside Python: of this machine, or Debian's packages unpacked into the user's cache."""

import fcntl
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.images.debian import Apt, cache_folder, relocate, unpack
from benchmarks.workflow.content import text_hash
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Tool:
    """Where a program is had from if the machine has none."""

    packages: tuple[str, ...]
    suite: str | None = None
    """Of Debian; None: the machine's own sources, and its libraries."""
    relocated: tuple[str, ...] = ()
    """Programs that must run with the libraries unpacked beside them."""
    moved: tuple[str, ...] = ()
    """Folders that the programs look for below usr, wherever that lies."""


DOCKER = Tool(("docker.io", "runc", "containerd"))
# Only in Debian unstable. Its starter takes usr/lib for the prefix, the command usr.
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
TOOLS = {
    "docker": DOCKER,
    "dockerd": DOCKER,
    "mmdebstrap": Tool(("mmdebstrap",)),
    "skopeo": Tool(("skopeo",)),
    "apptainer": APPTAINER,
}
FOLDERS = ("usr/bin", "usr/sbin")


def command(name: str, wrapped: bool = True) -> list[str]:
    """Return how to call a program, as the beginning of a command line. Raises ConfigError, one line with the cure.

    One of TOOLS is fetched once if the machine has none: about 10 s. Unwrapped, apptainer can build images as root,
    and not run them where this root is not a full one.
    """
    wrapper = _wrapper(name) if wrapped else []
    if (found := shutil.which(name)) is not None:
        return [*wrapper, found]
    if name in TOOLS:
        root = unpacked(TOOLS[name])
        for folder in FOLDERS:
            if (root / folder / name).exists():
                return [*wrapper, *_environment(TOOLS[name], root), str(root / folder / name)]
    raise ConfigError(f"{name}: not on PATH; install it, or choose another engine or runtime")


def _environment(tool: Tool, root: Path) -> list[str]:
    """How an unpacked program finds the others that it calls, and, if it has none of its own, the libraries."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(str(root / folder) for folder in FOLDERS)])
    libraries = os.pathsep.join(sorted(str(folder) for folder in root.glob("usr/lib/*-linux-gnu*")))
    settings = [f"PATH={path}"] + ([f"LD_LIBRARY_PATH={libraries}"] if libraries and not tool.relocated else [])
    return ["env", *settings]


def _wrapper(name: str) -> list[str]:
    """A root that lacks a capability, as in many containers, can run apptainer as a user with a namespace can."""
    if name == "apptainer" and os.geteuid() == 0 and not _is_full_root():
        return [*command("unshare"), "--user", "--map-root-user"]
    return []


def _is_full_root() -> bool:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="utf-8"))
    return int(fields["CapEff"], 16) == 2 ** (last + 1) - 1


def unpacked(tool: Tool) -> Path:
    """Return the folder of a tool's packages, fetched if it is not there. One process fetches, others wait for it."""
    root = cache_folder() / "tools" / f"{tool.packages[0]}-{text_hash(repr(tool))}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
        os.replace(new, root)  # last, so that what is there is whole
