"""Does Slurm take a run's jobs at all? Asked before the first: otherwise each try of each cell is refused by itself."""

from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from benchmarks.cluster.job import ask
from benchmarks.cluster.site import SITE_FILE, Site
from resireduce.errors import ConfigError

DOCTOR = f"write the file by: python -m benchmarks doctor --slurm --write {SITE_FILE}"
NO_PARTITION, NO_ACCOUNT = "invalid partition", "invalid account"
"""In what sbatch says. Whatever else it refuses may be otherwise by then: a drained partition, a limit."""
ELSEWHERE = ("slurm_cluster", "cluster", "clusters")
"""What says of a partition that it is another cluster's, which is not asked."""


def check_submission(file: Path, site: Site, ask: Callable[[Sequence[str]], str] = ask) -> None:
    """Raise ConfigError, one line, for a partition in the site's file that is not there, or an account that none takes.

    Nothing is submitted: sbatch only says whether it would take a job of one task.
    """
    partitions = yaml.safe_load(file.read_text(encoding="utf-8"))["partitions"]
    here = [str(name) for name, limits in partitions.items() if not any(key in limits for key in ELSEWHERE)]
    if partitions and not here:
        return
    refused = {name: refusal(name, site.account, ask) for name in here or [""]}
    for name, said in refused.items():
        if NO_PARTITION in said:
            raise ConfigError(f"{file}: partitions: {name!r} is not allowed: {said}; take it out, or {DOCTOR}")
    if all(NO_ACCOUNT in said for said in refused.values()):
        said = next(iter(refused.values()))
        raise ConfigError(f"{file}: account: {site.account!r} is not allowed: {said}; give another, or {DOCTOR}")


def refusal(partition: str, account: str | None, ask: Callable[[Sequence[str]], str] = ask) -> str:
    """Return why sbatch would not take a job there, in its own words and small letters; nothing if it would.

    No partition's name is that of the default one.
    """
    given = {"account": account, "partition": partition}
    options = [f"--{name}={value}" for name, value in given.items() if value]
    try:
        ask(["sbatch", "--test-only", *options, "--time=1", "--wrap=true"])
    except ConfigError as error:
        return str(error).rpartition(": ")[2].lower()
    return ""
