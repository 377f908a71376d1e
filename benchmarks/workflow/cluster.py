"""What the rules need to know of the cluster that cells run on, if they run on one. Imported by the workflow only."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.cluster.placement import place
from benchmarks.cluster.site import Site, site_file
from resireduce.errors import ConfigError

PARTITIONS = "SNAKEMAKE_SLURM_PARTITIONS"
"""Where Snakemake's executor for Slurm looks for the partitions, when it starts."""


def get_site(config: dict[str, Any], overwritten: Mapping[str, Any]) -> Site | None:
    """Return the site, if the profile says how cells are started, by srun; None on one machine.

    What the config does not say of the image that cells run in, the site does: both are entered into `config`.
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
    """Raise ConfigError, one line with the cell, for one that the site has no place for."""
    for cell in cells:
        try:
            place(cell, site)
        except ConfigError as error:
            raise ConfigError(f"{cell.name}: {error}") from None
