"""`python -m benchmarks resume`: resumes a stopped run with the options it was started with. Imports no torch."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json, save_json, try_json
from benchmarks.core.paths import RUNS
from benchmarks.core.run_config import get_cells
from benchmarks.workflow.leftovers import FolderInUse, end_leftovers, lock_folder, move_damaged
from resireduce.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, help="name of the run, or its folder in results/runs")
    text = "options for snakemake, after --: those that the run was started with beside profile and config"
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help=text)


def main(args: argparse.Namespace) -> int:
    """End the run's jobs that are left in the queue, put damaged records aside, and become Snakemake."""
    folder = find_run(args.run)
    config = read_config(folder)
    cells = get_cells(config)
    profile = started_with(folder)
    try:
        with lock_folder(folder):
            if profile is not None:
                end_leftovers(folder, cells)
            move_damaged(folder, cells)
    except FolderInUse as error:
        raise ConfigError(f"run: {error}") from None
    line = command(folder, profile, args.options)
    print(f"{folder}: {shlex.join(['snakemake', *line])}", flush=True)
    # Snakemake replaces this process, so that Ctrl-C and the exit status are its own.
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *line])


def command(folder: Path, profile: Sequence[str] | None, options: Sequence[str]) -> list[str]:
    """Return the arguments of Snakemake that resume a run, from the config in its folder."""
    # Without !!str Snakemake reads 007 or 1e3 as numbers, and the run lies elsewhere. The config takes all words up to
    # the next option, so it must not be last.
    config = ["--configfile", str(folder / "config.json"), "--config", f"run=!!str {folder.name}"]
    return [*config, *(HERE if profile is None else profile), *options]


def find_run(given: str) -> Path:
    """Return the folder of a run, relative to the project's. Raises ConfigError if there is none of that name."""
    if not Path("Snakefile").is_file():
        raise ConfigError(f"folder: {str(Path.cwd())!r} has no Snakefile; run this in the project's folder")
    name = Path(given).name
    if given.rstrip("/") != name and Path(given).absolute().parent.resolve() != RUNS.resolve():
        raise ConfigError(f"run: {given!r} is not in {RUNS}; give the name of a run, or its folder there")
    folder = RUNS / name
    if not name or not (folder / "config.json").is_file():
        there = ", ".join(sorted(path.parent.name for path in RUNS.glob("*/config.json"))) or "none"
        raise ConfigError(f"run: {given!r} was never started; there are: {there}")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Return what the run was started with. Raises ConfigError, one line, if that cannot be read."""
    path = folder / "config.json"
    try:
        config = load_json(path)
        if not isinstance(config, dict):
            raise ValueError("no mapping")
    except (OSError, ValueError) as error:
        raise ConfigError(f"run: {path} cannot be read ({error}); start the run anew with its config file") from None
    return config


FILE = "start.json"
HERE = ("--cores", "all", "--keep-going", "--rerun-incomplete", "--quiet", "rules", "progress", "host", "--nolock")
"""Snakemake's options on one machine, as in `make run`; a list of values must not be last, as it takes all words."""
CLUSTER = ("--profile", "slurm")


def profile_options(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the options of a snakemake command line that name the profile of a cluster."""
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

    If the file is missing or unreadable, the run's config decides: it has a site only on a cluster.
    """
    for name, key in ((FILE, "profile"), ("config.json", "site")):
        values = try_json(folder / name)
        if isinstance(values, dict) and key in values:
            found = values[key]
            return (found if isinstance(found, list) else list(CLUSTER)) if found else None
    return None
