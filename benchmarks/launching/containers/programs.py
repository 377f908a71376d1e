"""Programs that images need beside Python: this machine's own, or those that the rig fetches."""

import os
import shutil
from pathlib import Path

from resireduce.errors import ConfigError
from resireduce.scheme import load


def command(name: str, wrapped: bool = True) -> list[str]:
    """Return how to call a program, as the beginning of a command line. Raises ConfigError, one line with the cure.

    A program that the rig knows is fetched once if the machine lacks it, in about 10 s. Not `wrapped`, apptainer can
    build images as root, but not run them if root lacks capabilities.
    """
    wrapper = _wrapper(name) if wrapped else []
    if (found := shutil.which(name)) is not None:
        return [*wrapper, found]
    if (fetched := load("benchmarks.rig.debian:fetched_command")(name)) is not None:
        return [*wrapper, *fetched]
    raise ConfigError(f"{name}: not on PATH; install it, or choose another engine or runtime")


def _wrapper(name: str) -> list[str]:
    """Return the wrapper by which a root without all capabilities, as in many containers, runs apptainer as a user."""
    if name == "apptainer" and os.geteuid() == 0 and not _is_full_root():
        return [*command("unshare"), "--user", "--map-root-user"]
    return []


def _is_full_root() -> bool:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="utf-8"))
    return int(fields["CapEff"], 16) == 2 ** (last + 1) - 1
