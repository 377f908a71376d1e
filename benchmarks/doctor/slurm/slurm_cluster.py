"""The cluster as sinfo describes it."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.launching.slurm.queue import seconds_left

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
