"""`doctor --slurm`: ask whether the cluster's partitions take a job, and write the site file."""

import argparse
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.checks import seconds
from benchmarks.core.files import read_text, save_text, writable
from benchmarks.core.paths import ROOT
from benchmarks.doctor.machine_checks import Finding, failed, not_run, ok, one_line
from benchmarks.launching.slurm.queue import ask as ask_slurm
from benchmarks.launching.slurm.queue import seconds_left
from benchmarks.launching.slurm.site import DEFAULT_FILE, SITE_FILE, Site, site_file
from resireduce.errors import ConfigError, choose

# --- the cluster as sinfo describes it ---

Ask = Callable[[Sequence[str]], str]
"""How one of Slurm's programs is run: `queue.ask`, or a stand-in. Raises ConfigError if it does not answer."""
FORMAT = "%P|%a|%l|%s|%N|%c|%m|%Z|%T|%G"
"""Partition, whether it is up, most time and nodes of a job; node, its CPUs, MB, threads of a core, state and gres."""
GRES = re.compile(r"^gpu(?::(?P<type>[^:]+))??(?::no_consume)?(?::(?P<count>\d+))?$")
UNUSABLE = {
    *("down", "drain", "drained", "draining", "fail", "failing", "error", "future", "unknown", "inval", "maint"),
    *("powering_down", "reboot", "reboot_issued"),
}
"""States of a node in which no job starts on it now. A node switched off to save power is switched on again."""


def gpus(gres: str) -> dict[str, int]:
    """Return the number of GPUs of each type on a node, from its Gres; the type is an empty text where none is given.

    `gpu:a100:4(S:0-1),nvme:1` has four of type a100; the brackets list their sockets or devices.
    """
    found: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        if match := GRES.fullmatch(part.strip()):
            found[match["type"] or ""] += int(match["count"] or 1)
    return {kind: count for kind, count in found.items() if count}


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    """Number of GPUs of each type; the type may be an empty text."""
    state: str
    threads_per_core: int = 1

    @property
    def is_usable(self) -> bool:
        """Whether jobs can start on it, now or once others have ended."""
        return not self.state.endswith("*") and self.state.rstrip("~#!%$@^-") not in UNUSABLE


@dataclass(frozen=True)
class Shape:
    """What the nodes of a partition have in common: the most frequent kind, or of equally frequent ones the larger."""

    gpu_type: str
    gpus: int
    cpus: int
    memory_mb: int
    nodes: int
    """Number of usable nodes."""
    threads_per_core: int = 1


@dataclass(frozen=True)
class Partition:
    """One partition."""

    name: str
    is_default: bool
    is_up: bool
    max_minutes: float
    """Infinite if there is no limit."""
    max_nodes: float
    nodes: list[Node]

    @property
    def usable(self) -> list[Node]:
        """Nodes on which jobs can start."""
        return [node for node in self.nodes if node.is_usable]

    @property
    def gpu_types(self) -> list[str]:
        """Types of GPUs on its nodes."""
        return sorted({kind for node in self.nodes for kind in node.gpus})

    def shape(self) -> Shape | None:
        """Return the shape of its usable nodes; None if there are none. Nodes with GPUs take precedence."""
        counts = Counter(item for node in self.usable for item in node.gpus.items())
        (kind, gpu_count), _ = max(counts.items(), key=lambda it: (it[1], it[0][1]), default=(("", 0), 0))
        alike = [node for node in self.usable if node.gpus.get(kind, 0) == gpu_count]
        if not alike:
            return None
        cpus, memory = min(node.cpus for node in alike), min(node.memory_mb for node in alike)
        return Shape(kind, gpu_count, cpus, memory, len(alike), max(node.threads_per_core for node in alike))


def look(ask: Ask) -> list[Partition]:
    """Return the partitions that sinfo shows. Raises ConfigError if it does not answer."""
    found: dict[str, Partition] = {}
    for line in ask(["sinfo", "--noheader", "--Node", f"--format={FORMAT}"]).splitlines():
        partition, up, limit, sizes, name, cpus, memory, threads, state, gres = line.split("|")
        most = sizes.rpartition("-")[2]
        own = Partition(
            name=partition.rstrip("*"),
            is_default=partition.endswith("*"),
            is_up=up == "up",
            max_minutes=seconds_left(limit) / 60,
            max_nodes=int(most) if most.isdecimal() else math.inf,
            nodes=[],
        )
        node = Node(name, int(cpus), int(memory), gpus(gres), state, int(threads))
        found.setdefault(own.name, own).nodes.append(node)
    return list(found.values())


# --- the values to propose ---

SHARE = 0.95
"""Share of a node's memory that a job requests; the rest is for Snakemake, on its first node, and the system."""
LEAST_MB = 1000
"""Memory per rank where a node has it, even if the last tries then request more than there is."""
MOST_CPUS = 16
"""Per rank."""
TRIES = 5
"""How often a job is tried, each time with more memory: once, and the `retries` of slurm/config.yaml."""


def propose(
    usable: Sequence[tuple[Partition, Shape]], chosen: Sequence[str], current: Site
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the partition of `usable` that the site describes, and the values for `partitions` and `site`."""

    def rank(one: tuple[Partition, Shape]) -> tuple[int, bool, bool, int]:
        """The first partition named, else prefer one with GPUs, then Slurm's default, then the largest."""
        partition, shape = one
        order = -chosen.index(partition.name) if partition.name in chosen else -len(chosen)
        return order, shape.gpus > 0, partition.is_default, shape.nodes * max(1, shape.gpus)

    main, shape = max(usable, key=rank)
    types = {kind for partition, _ in usable for kind in partition.gpu_types}
    site = _site(shape, len(types) > 1)
    longest = max(partition.max_minutes for partition, _ in usable)
    for name in ("longest_minutes", "minutes"):
        if longest < getattr(current, name):
            site[name] = int(longest)
    return main.name, {partition.name: limits(partition) for partition, _ in usable}, site


def limits(partition: Partition) -> dict[str, Any]:
    """Return a partition's limits under the names of Snakemake's Slurm plugin."""
    usable, found = partition.usable, dict[str, Any]()
    if math.isfinite(partition.max_minutes):
        found["max_runtime"] = int(partition.max_minutes)
    found["max_nodes"] = int(min(len(usable), partition.max_nodes))
    if gpus := max((count for node in usable for count in node.gpus.values()), default=0):
        found["max_gpu"] = gpus
    if kinds := [kind for kind in partition.gpu_types if kind]:
        found["available_gpu_models"] = kinds
    return found | {"max_mem_mb": max(node.memory_mb for node in usable)}


def _site(shape: Shape, several_types: bool) -> dict[str, Any]:
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
    found["memory_mb_per_rank"] = max(once // TRIES, min(once, LEAST_MB))
    return found


HEAD = f"""# Written by: python -m benchmarks doctor --slurm --write FILE
# {DEFAULT_FILE} explains each line. The file that was here before has .old behind its name.
"""


def fill(before: Mapping[str, Any], partitions: Mapping[str, Any], site: Mapping[str, Any]) -> str:
    """Return the text of a site file with the proposed values; all others stay as they are."""
    old = before.get("partitions") or {}
    new = {name: {**old.get(name, {}), **values} for name, values in partitions.items()}
    filled = {**before, "partitions": {**old, **new}, "site": {**(before.get("site") or {}), **site}}
    return HEAD + yaml.safe_dump(filled, sort_keys=False, width=120)


# --- would it take a job? ---


def try_partition(partition: Partition, shape: Shape | None, account: str | None, ask: Ask) -> Finding:
    """Say whether sbatch would take a job on one node of a partition with all its GPUs. Nothing is submitted."""
    name = f"partition {partition.name}"
    if not partition.is_up or shape is None:
        state = "up" if partition.is_up else "not up"
        return not_run("job", f"{name}: it is {state}, {len(partition.usable)} of its nodes can be used")
    options = [f"--partition={partition.name}", "--nodes=1", "--time=1"]
    options += [f"--gres=gpu:{shape.gpu_type}{':' * bool(shape.gpu_type)}{shape.gpus}"] if shape.gpus else []
    options += [f"--account={account}"] if account else []
    try:
        ask(["sbatch", "--test-only", *options, "--wrap=true"])
    except ConfigError as error:
        return not_run("job", one_line(f"{name}: {error}", 300))
    return ok("job", f"{name}: takes a job on a node with {shape.gpus or 'no'} GPUs, account {account or 'not needed'}")


# --- the command ---

REFUSED = "account in slurm/partitions.yaml (sacctmgr show user $USER withassoc); scontrol show partition; --partition"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("on a login node of a Slurm cluster")
    text = "just this partition, and the site file's values from it; may be given several times"
    group.add_argument("--partition", metavar="NAME", action="append", default=[], help=text)
    group.add_argument("--write", metavar="FILE", type=Path, help=f"write the site file, {SITE_FILE} for example")


def examine(args: argparse.Namespace) -> Iterator[list[Finding]]:
    """Yield findings as they come. Raises ConfigError before any work."""
    ask = partial(ask_slurm, timeout_seconds=seconds("timeout", args.timeout))
    target = args.write or SITE_FILE
    source = target if target.exists() else site_file(ROOT)
    current, before = Site.load(source), yaml.safe_load(read_text(source))
    if args.write:
        writable("write", args.write)
    try:
        partitions = look(ask)
    except ConfigError as error:
        yield [failed("slurm", one_line(error), "on a login node scontrol ping says whether the controller is up")]
        return
    for name in args.partition:
        choose("partition", name, [partition.name for partition in partitions])
    names = ", ".join(f"{one.name}{' (default)' if one.is_default else ''}" for one in partitions)
    yield [ok("slurm", f"partitions {names or 'none'}")]
    usable = []
    for partition in partitions:
        if partition.name in (args.partition or [partition.name]):
            shape = partition.shape()
            found = try_partition(partition, shape, current.account, ask)
            yield [found]
            if found.status == "ok" and shape is not None:
                usable.append((partition, shape))
    if not usable:
        yield [failed("site", "no partition takes a job", REFUSED)]
        return
    main, limited, site = propose(usable, args.partition, current)
    if not args.write:
        yield [
            not_run("site", f"nothing was written; to write it: python -m benchmarks doctor --slurm --write {target}")
        ]
        return
    if args.write.exists():
        shutil.copy(args.write, f"{args.write}.old")
    save_text(fill(before, limited, site), args.write)
    options = "" if args.write.resolve() == (ROOT / SITE_FILE).resolve() else f" --config site={args.write}"
    said = f"{args.write} is written, by partition {main}; next: snakemake -n --profile slurm{options}"
    yield [ok("site", said)]
