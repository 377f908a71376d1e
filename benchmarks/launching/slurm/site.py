"""Settings that differ between clusters, read from one file: `slurm/partitions.default.yaml` explains its lines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from benchmarks.core.checks import Check, allow, is_number, is_text, known_keys, within
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.run_config import NETWORKS, RUNTIMES
from resireduce.errors import ConfigError, choose, is_count

SITE_FILE = Path("slurm/partitions.yaml")
"""A site's own file, which git does not track."""
DEFAULT_FILE = Path("slurm/partitions.default.yaml")
"""The file that is used if a site has none."""
MOST = 10**8
"""Largest number allowed in the file: minutes, or megabytes of a node."""
GRES = re.compile(r"[A-Za-z0-9_]+(:[A-Za-z0-9_.-]+)?")
LIMITS = tuple(
    f"max_{name}"
    for name in (
        *("runtime", "mem_mb", "mem_mb_per_cpu", "cpus_per_task", "threads", "nodes", "tasks", "tasks_per_node", "gpu"),
        *("cpus_per_gpu", "mpi_tasks"),
    )
)
OTHER_LIMITS = ("available_gpu_models", "supports_mpi", "available_constraints", "slurm_cluster", "cluster", "clusters")
"""Keys of a partition that the executor plugin for Slurm reads: numbers (LIMITS), and the rest."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster, as jobs of this suite use it. The defaults apply to a site that sets nothing."""

    account: str | None = None
    """Account that jobs are charged to; None: that of the user's last job, or Slurm's default."""
    gres: str = "gpu"
    """Name of GPUs in --gres, with their type if wanted: gpu, gpu:a100."""
    gpus_per_node: int = 8
    """0: ranks train on CPUs."""
    ranks_per_node: int = 8
    """Most ranks of a node without GPUs; with GPUs each rank has one."""
    cpus_per_rank: int = 2
    memory_mb_per_rank: int = 16_000
    """Host memory. The n-th try of a job asks for n times as much."""
    most_memory_mb: int | None = None
    """Memory of a node: no try asks for more; None: no limit."""
    minutes: int = 60
    """Time limit of a job. A cell that needs more saves its state before the limit, and resumes in the next try."""
    longest_minutes: int = 1440
    """No try asks for more."""
    checkpoint_minutes: float = 10.0
    """How often a cell saves a checkpoint, from which it resumes if it is killed."""
    runtime: str = "none"
    image: str | None = None
    network: str = "host"
    """Network of containers. Each rank has its own container: without the host's network, none reaches another."""
    modules: tuple[str, ...] = ()
    """Environment modules that are loaded before a cell starts."""
    scratch: str | None = None
    """Folder for temporary files on each node, as TMPDIR; variables such as $SLURM_JOB_ID in it are expanded there."""
    interface: str | None = None
    """Network device over which nodes reach each other, for gloo and NCCL; None: the device of the route to them."""

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that is not allowed."""
        for name, (allowed, is_allowed) in ALLOWED.items():
            allow(name, getattr(self, name), is_allowed(getattr(self, name)), allowed)
        choose("runtime", self.runtime, RUNTIMES)
        choose("network", self.network, NETWORKS)
        object.__setattr__(self, "modules", tuple(self.modules))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `site` in a file. Raises ConfigError, one line with the path, if it cannot be used."""
        values = read_yaml(path, "site", f"the file of a cluster, as {DEFAULT_FILE}", "partitions", str(DEFAULT_FILE))
        with within(path):
            known_keys("file", values, ("partitions", "site"))
            if not isinstance(values.get("partitions"), Mapping):
                raise ConfigError("partitions: missing; give the partitions' names and limits, or {}")
            given = values.get("site") or {}
            known_keys("site", given, [field.name for field in fields(cls)])
            site = cls(**given)
            check_partitions(values["partitions"], site)
            return site


def site_file(folder: Path = Path()) -> Path:
    """Return the site's file in a project's folder, or the default one if the site has none."""
    return folder / (SITE_FILE if (folder / SITE_FILE).exists() else DEFAULT_FILE)


def check_partitions(partitions: Mapping[Any, Any], site: Site) -> None:
    """Raise ConfigError for limits of partitions that Snakemake's executor does not know, or that no cell can meet."""
    for name, limits in partitions.items():
        where = f"partitions: {name}"
        allow(where, limits, _text(name) and isinstance(limits, Mapping), "limits by name, or {}")
        known_keys(where, limits, (*LIMITS, *OTHER_LIMITS))
        for key in LIMITS:
            value = limits.get(key, 1)
            is_limit = is_number(value) or (key == "max_runtime" and _text(value))
            allow(f"{where}: {key}", value, is_limit, "a number, or leave it out")
    most = [limits.get("max_gpu", 0) for limits in partitions.values()]
    if most and max(most) < site.gpus_per_node:
        raise ConfigError(
            f"gpus_per_node: {site.gpus_per_node} is not allowed: max_gpu of all partitions is {max(most)} at most; "
            f"give what a node has, or write the file by: python -m benchmarks doctor --slurm --write {SITE_FILE}"
        )


def _whole(least: int) -> tuple[str, Check]:
    return f"a whole number from {least} to {MOST}", lambda value: is_count(value) and least <= value <= MOST


def _text(value: Any) -> bool:
    return is_text(value) and value.isprintable()


_TEXT_OR_NONE = ("a text, or null", lambda value: value is None or _text(value))
ALLOWED: dict[str, tuple[str, Check]] = {
    "account": _TEXT_OR_NONE,
    "gres": ("gpu, or gpu:TYPE", lambda value: isinstance(value, str) and GRES.fullmatch(value) is not None),
    "gpus_per_node": _whole(0),
    "ranks_per_node": _whole(1),
    "cpus_per_rank": _whole(1),
    "memory_mb_per_rank": _whole(1),
    "most_memory_mb": (f"{_whole(1)[0]}, or null", lambda value: value is None or _whole(1)[1](value)),
    "minutes": _whole(1),
    "longest_minutes": _whole(1),
    "checkpoint_minutes": ("a number of minutes above 0", lambda value: is_number(value) and 0 < value < 10**6),
    "image": _TEXT_OR_NONE,
    "modules": ("a list of names", lambda value: isinstance(value, list | tuple) and all(map(_text, value))),
    "scratch": _TEXT_OR_NONE,
    "interface": _TEXT_OR_NONE,
}
"""For each field: the allowed values in words, and their check."""
