"""What the site file should say of this cluster: limits of partitions, and what jobs ask for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.doctor.slurm.inventory import Partition, Shape
from benchmarks.doctor.slurm.slurm_settings import PROFILE
from benchmarks.launching.slurm.site import Site

SHARE = 0.95
"""Share of a node's memory that a job asks for: the rest is for Snakemake, on its first node, and for the system."""
LEAST_MB = 1000
"""For a rank, where a node has so much, even if the last tries then ask for more than there is."""
MOST_CPUS = 16
"""For a rank."""
RETRIES = 4
"""Where the profile cannot be read."""


@dataclass(frozen=True)
class Tried:
    """A partition whose job did not fail, and what came out."""

    partition: Partition
    account: str | None = None
    """The one that was needed."""
    interface: str | None = None
    """The network device that cells were told; None: they found it themselves."""
    trained: bool = False
    """Whether a cell has trained, so that `interface` is right."""


@dataclass(frozen=True)
class Proposal:
    """Values for the site file; what it does not name stays as it is there."""

    partitions: Mapping[str, Mapping[str, Any]]
    site: Mapping[str, Any]
    main: str
    """The partition whose nodes `site` describes."""
    notes: Sequence[str] = field(default_factory=tuple)


def propose(tried: Sequence[Tried], chosen: Sequence[str], current: Site, tries: int) -> Proposal:
    """Return what the site file should say.

    Args:
        tried: at least one; each has a shape.
        chosen: partitions that the user named; the first counts most.
        current: what the site file says now.
        tries: how often a job may be tried, each time with more memory.
    """
    main = _main(tried, chosen)
    shape = _shape(main.partition)
    types = {kind for one in tried for kind in one.partition.gpu_types}
    site = _site(shape, len(types) > 1, tries)
    longest = max(one.partition.max_minutes for one in tried)
    if longest < current.longest_minutes:
        site |= {"longest_minutes": int(longest)}
    if longest < current.minutes:
        site |= {"minutes": int(longest)}
    site |= {"account": main.account} if main.account else {}
    site |= {"interface": main.interface} if main.trained and main.interface != current.interface else {}
    notes = _notes(main, tried)
    return Proposal({one.partition.name: limits(one.partition) for one in tried}, site, main.partition.name, notes)


def limits(partition: Partition) -> dict[str, Any]:
    """Return a partition's limits, as the Slurm plugin of Snakemake names them."""
    usable, found = partition.usable, dict[str, Any]()
    if math.isfinite(partition.max_minutes):
        found["max_runtime"] = int(partition.max_minutes)
    found["max_nodes"] = min(len(usable), partition.max_nodes or len(usable))
    if gpus := max((count for node in usable for count in node.gpus.values()), default=0):
        found["max_gpu"] = gpus
    if kinds := [kind for kind in partition.gpu_types if kind]:
        found["available_gpu_models"] = kinds
    memory = max(node.memory_mb for node in usable)
    found["max_mem_mb"] = min(memory, partition.max_memory_mb or memory)
    return found


def tries_of(profile: Path = PROFILE) -> int:
    """Return how often the profile tries a job."""
    try:
        return 1 + int((yaml.safe_load(profile.read_text(encoding="utf-8")) or {}).get("retries", 0))
    except (OSError, yaml.YAMLError, ValueError, TypeError):
        return 1 + RETRIES


def _shape(partition: Partition) -> Shape:
    shape = partition.shape()
    assert shape is not None, f"{partition.name}: tried without a node"
    return shape


def _main(tried: Sequence[Tried], chosen: Sequence[str]) -> Tried:
    """The one named first; else with GPUs before without, Slurm's default before others, then the largest."""

    def rank(one: Tried) -> tuple[int, bool, bool, int]:
        name, shape = one.partition.name, _shape(one.partition)
        order = -chosen.index(name) if name in chosen else -len(chosen)
        return order, shape.gpus > 0, one.partition.is_default, shape.nodes * max(1, shape.gpus)

    return max(tried, key=rank)


def _site(shape: Shape, several_types: bool, tries: int) -> dict[str, Any]:
    """What follows from a node: a whole node's ranks must fit with the memory of the last try."""
    found: dict[str, Any] = {"gpus_per_node": shape.gpus}
    if shape.gpus:
        ranks = shape.gpus
        found["gres"] = f"gpu:{shape.gpu_type}" if several_types and shape.gpu_type else "gpu"
    else:
        ranks = found["ranks_per_node"] = max(1, min(8, shape.cpus // 2))
    # Cores and not threads: Slurm gives whole ones. One is left for what starts the ranks.
    cpus = (shape.cpus - 1) // ranks // shape.threads_per_core * shape.threads_per_core
    found["cpus_per_rank"] = max(1, min(MOST_CPUS, cpus))
    once = int(shape.memory_mb * SHARE) // ranks
    found["memory_mb_per_rank"] = max(once // tries, min(once, LEAST_MB))
    return found


def _notes(main: Tried, tried: Sequence[Tried]) -> list[str]:
    """What a reader of the file would not expect."""
    shape = _shape(main.partition)
    gpus = f"{shape.gpus} GPUs of a node" if shape.gpus else "no GPUs"
    others = [one.partition.name for one in tried if _shape(one.partition).gpus != shape.gpus]
    found = [f"{', '.join(others)} differs: site has the {gpus} of {main.partition.name}"] if others else []
    accounts = {one.partition.name: one.account for one in tried if one.account != main.account}
    if accounts:
        shown = ", ".join(f"{name}: {account or 'none'}" for name, account in accounts.items())
        found.append(f"other accounts worked elsewhere ({shown}); site has one, {main.account or 'the default'}")
    return found
