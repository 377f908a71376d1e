"""The cluster that cells run on, and checks that it accepts their jobs. For the workflow."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.cell import Cell
from benchmarks.core.checks import within
from benchmarks.launching.slurm.queue import ask
from benchmarks.launching.slurm.site import SITE_FILE, Site, site_file
from benchmarks.launching.slurm.step import place
from resireduce.errors import ConfigError

PARTITIONS = "SNAKEMAKE_SLURM_PARTITIONS"
"""Variable in which Snakemake's executor for Slurm looks for the partitions when it starts."""


def get_site(config: dict[str, Any], overwritten: Mapping[str, Any]) -> Site | None:
    """Return the site if the profile in `overwritten` starts cells by srun; None on one machine.

    The site, and its settings for the image that `config` does not have, are entered into `config`.
    Raises ConfigError, one line.
    """
    if "launcher" not in overwritten.get("cell", {}):
        if "site" in config:
            raise ConfigError(f"site: {config['site']!r} is of no use without the profile: snakemake --profile slurm")
        return None
    config["site"] = str(config.get("site", site_file()))
    site = Site.load(Path(config["site"]))
    os.environ[PARTITIONS] = config["site"]
    if site.longest_minutes < site.minutes:
        raise ConfigError(
            f"{config['site']}: longest_minutes: {site.longest_minutes} is not allowed: the first try asks for "
            f"minutes, {site.minutes}; give as many at least"
        )
    given = {"runtime": site.runtime, "image": site.image, "network": site.network}
    if config.get("runtime") or site.runtime != "none":
        config.update({name: value for name, value in given.items() if value is not None and name not in config})
        if config["runtime"] != "none" and config["network"] == "none":
            raise ConfigError("network: 'none' keeps ranks apart, each in a container of its own; give network=host")
    return site


def check_places(cells: Iterable[Cell], site: Site) -> None:
    """Raise ConfigError, one line with the cell, if the site has no place for it."""
    for cell in cells:
        with within(cell.name):
            place(cell, site)


DOCTOR = f"write the file by: python -m benchmarks doctor --slurm --write {SITE_FILE}"
NO_PARTITION, NO_ACCOUNT = "invalid partition", "invalid account"
"""Parts of sbatch's messages. Other refusals, such as a drained partition or a limit, may no longer apply later."""
ELSEWHERE = ("slurm_cluster", "cluster", "clusters")
"""Keys that mark a partition as another cluster's, which is not asked."""


def check_submission(file: Path, site: Site, ask: Callable[[Sequence[str]], str] = ask) -> None:
    """Raise ConfigError, one line, if a partition in the site's file does not exist, or all refuse the account.

    Nothing is submitted: sbatch only says whether it would take a job of one task.
    """
    partitions = yaml.safe_load(file.read_text(encoding="utf-8"))["partitions"]
    here = [str(name) for name, limits in partitions.items() if not any(key in limits for key in ELSEWHERE)]
    if partitions and not here:
        return
    refused = dict[str, str]()
    for name in here or [""]:
        given = {"account": site.account, "partition": name}
        options = [f"--{option}={value}" for option, value in given.items() if value]
        try:
            ask(["sbatch", "--test-only", *options, "--time=1", "--wrap=true"])
            refused[name] = ""
        except ConfigError as error:
            refused[name] = str(error).rpartition(": ")[2].lower()
    for name, said in refused.items():
        if NO_PARTITION in said:
            raise ConfigError(f"{file}: partitions: {name!r} is not allowed: {said}; take it out, or {DOCTOR}")
    if all(NO_ACCOUNT in said for said in refused.values()):
        said = next(iter(refused.values()))
        raise ConfigError(f"{file}: account: {site.account!r} is not allowed: {said}; give another, or {DOCTOR}")
