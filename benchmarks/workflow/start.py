"""How a run was started, kept in its folder: what goes on with it starts it the same way."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.files import load_json, save_json

FILE = "start.json"
HERE = ("--cores", "all", "--keep-going", "--rerun-incomplete", "--quiet", "rules", "progress", "host", "--nolock")
"""Options of Snakemake on one machine, as `make run` gives them; a list of values is not last, it would go on."""
CLUSTER = ("--profile", "slurm")


def profile_options(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the options of a snakemake command line by which it found the profile of a cluster."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", default=environment.get("SNAKEMAKE_PROFILE"))
    parser.add_argument("--workflow-profile")
    given, _ = parser.parse_known_args(list(arguments))
    named = {"--profile": given.profile, "--workflow-profile": given.workflow_profile}
    return [word for option, value in named.items() if value for word in (option, value)] or list(CLUSTER)


def remember_start(folder: Path, options: Sequence[str] | None) -> None:
    """Write how the run is started: with `options` on a cluster; None: on this machine."""
    save_json({"profile": list(options) if options else None}, folder / FILE)


def started_with(folder: Path) -> list[str] | None:
    """Return the options by which the run was last started on a cluster; None if it was on one machine.

    Where the file is not there, or cannot be read, its config says which: only on a cluster it has a site.
    """
    for name, key in ((FILE, "profile"), ("config.json", "site")):
        try:
            found = load_json(folder / name)[key]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return (found if isinstance(found, list) else list(CLUSTER)) if found else None
    return None
