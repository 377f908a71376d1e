"""Propose the site file's values for this cluster: limits of partitions, and what jobs request."""

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
"""Share of a node's memory that a job requests; the rest is for Snakemake, on its first node, and the system."""
LEAST_MB = 1000
"""Memory per rank where a node has it, even if the last tries then request more than there is."""
MOST_CPUS = 16
"""Per rank."""
RETRIES = 4
"""Used if the profile cannot be read."""


@dataclass(frozen=True)
class Tried:
    """A partition whose job did not fail, with the results."""

    partition: Partition
    account: str | None = None
    """The account that was needed."""
    interface: str | None = None
    """The network device that cells were given; None if they found it themselves."""
    trained: bool = False
    """Whether a cell has trained, which shows that `interface` is right."""


@dataclass(frozen=True)
class Proposal:
    """Values for the site file; everything else in it stays unchanged."""

    partitions: Mapping[str, Mapping[str, Any]]
    site: Mapping[str, Any]
    main: str
    """The partition whose nodes `site` describes."""
    notes: Sequence[str] = field(default_factory=tuple)


def propose(tried: Sequence[Tried], chosen: Sequence[str], current: Site, tries: int) -> Proposal:
    """Return the values that the site file should have.

    Args:
        tried: at least one; each has a shape.
        chosen: partitions that the user named; the first has priority.
        current: the present values of the site file.
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
    """Return a partition's limits under the names of Snakemake's Slurm plugin."""
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
    """Return how many times the profile tries a job."""
    try:
        return 1 + int((yaml.safe_load(profile.read_text(encoding="utf-8")) or {}).get("retries", 0))
    except (OSError, yaml.YAMLError, ValueError, TypeError):
        return 1 + RETRIES


def _shape(partition: Partition) -> Shape:
    shape = partition.shape()
    assert shape is not None, f"{partition.name}: tried without a node"
    return shape


def _main(tried: Sequence[Tried], chosen: Sequence[str]) -> Tried:
    """Return the first partition named, else prefer one with GPUs, then Slurm's default, then the largest."""

    def rank(one: Tried) -> tuple[int, bool, bool, int]:
        name, shape = one.partition.name, _shape(one.partition)
        order = -chosen.index(name) if name in chosen else -len(chosen)
        return order, shape.gpus > 0, one.partition.is_default, shape.nodes * max(1, shape.gpus)

    return max(tried, key=rank)


def _site(shape: Shape, several_types: bool, tries: int) -> dict[str, Any]:
    """Return the values that follow from a node: its ranks must fit with the memory of the last try."""
    found: dict[str, Any] = {"gpus_per_node": shape.gpus}
    if shape.gpus:
        ranks = shape.gpus
        found["gres"] = f"gpu:{shape.gpu_type}" if several_types and shape.gpu_type else "gpu"
    else:
        ranks = found["ranks_per_node"] = max(1, min(8, shape.cpus // 2))
    # Multiples of whole cores, as Slurm gives only these. One CPU is left for the process that starts the ranks.
    cpus = (shape.cpus - 1) // ranks // shape.threads_per_core * shape.threads_per_core
    found["cpus_per_rank"] = max(1, min(MOST_CPUS, cpus))
    once = int(shape.memory_mb * SHARE) // ranks
    found["memory_mb_per_rank"] = max(once // tries, min(once, LEAST_MB))
    return found


def _notes(main: Tried, tried: Sequence[Tried]) -> list[str]:
    """Return notes on what a reader of the file would not expect."""
    shape = _shape(main.partition)
    gpus = f"{shape.gpus} GPUs of a node" if shape.gpus else "no GPUs"
    others = [one.partition.name for one in tried if _shape(one.partition).gpus != shape.gpus]
    found = [f"{', '.join(others)} differs: site has the {gpus} of {main.partition.name}"] if others else []
    accounts = {one.partition.name: one.account for one in tried if one.account != main.account}
    if accounts:
        shown = ", ".join(f"{name}: {account or 'none'}" for name, account in accounts.items())
        found.append(f"other accounts worked elsewhere ({shown}); site has one, {main.account or 'the default'}")
    return found
