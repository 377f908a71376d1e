"""The cluster as Slurm's programs describe it."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.launching.slurm.queue import seconds_left

Ask = Callable[[Sequence[str]], str]
"""How checks run one of Slurm's programs: `queue.ask`, or a stand-in. Raises ConfigError if it does not answer."""

FIELD = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)")
"""NAME=value; a value may contain spaces, as that of OS does."""
GRES = re.compile(r"^gpu(?::(?P<type>[^:]+))??(?::no_consume)?(?::(?P<count>\d+))?$")


def records(text: str) -> list[dict[str, str]]:
    """Return the fields of each line of `scontrol --oneliner show ...`; the first one of a name counts."""
    return [dict(reversed(FIELD.findall(line))) for line in text.splitlines() if "=" in line]


def number(text: str | None) -> int | None:
    """Return the number that a text begins with, as in `300 sec`; None for UNLIMITED, N/A and the like."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def gpus(gres: str) -> dict[str, int]:
    """Return the number of GPUs of each type on a node, from its Gres; the type is an empty text where none is given.

    `gpu:a100:4(S:0-1),nvme:1` has four of type a100; the brackets list their sockets or devices.
    """
    found: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        if match := GRES.fullmatch(part.strip()):
            found[match["type"] or ""] += int(match["count"] or 1)
    return {kind: count for kind, count in found.items() if count}


# --- partitions and nodes, by scontrol ---


UNUSABLE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "FUTURE", "UNKNOWN", "INVAL", "INVALID_REG"),
    *("MAINT", "NOT_RESPONDING", "POWERING_DOWN", "REBOOT", "REBOOT_ISSUED"),
}
"""Words in a node's state for which no job starts on it now. A node switched off to save power is switched on again."""


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    cpus: int
    """CPUs available to jobs."""
    memory_mb: int
    gpus: Mapping[str, int]
    """Number of GPUs of each type; the type may be an empty text."""
    state: str
    threads_per_core: int = 1

    @property
    def is_usable(self) -> bool:
        """Whether jobs can start on it, now or once others have ended."""
        return not self.state.endswith("*") and not UNUSABLE & set(self.state.rstrip("~#!%$@^-").split("+"))


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
    state: str
    max_minutes: float
    """Infinite if there is no limit."""
    max_nodes: int | None
    max_memory_mb: int | None
    """Most memory that a job may use on one node."""
    nodes: tuple[Node, ...]

    @property
    def usable(self) -> tuple[Node, ...]:
        """Nodes on which jobs can start."""
        return tuple(node for node in self.nodes if node.is_usable)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types of GPUs on its nodes."""
        return tuple(sorted({kind for node in self.nodes for kind in node.gpus}))

    def shape(self) -> Shape | None:
        """Return the shape of its usable nodes; None if there are none. Nodes with GPUs take precedence."""
        counts = Counter(item for node in self.usable for item in node.gpus.items())
        (kind, gpu_count), _ = max(counts.items(), key=lambda it: (it[1], it[0][1]), default=(("", 0), 0))
        alike = [node for node in self.usable if node.gpus.get(kind, 0) == gpu_count]
        if not alike:
            return None
        memory = min(node.memory_mb for node in alike)
        memory = min(memory, self.max_memory_mb or memory)
        threads = max(node.threads_per_core for node in alike)
        return Shape(kind, gpu_count, min(node.cpus for node in alike), memory, len(alike), threads)


def look(ask: Ask) -> list[Partition]:
    """Return the partitions that scontrol shows. Raises ConfigError if it does not answer."""
    nodes = records(ask(["scontrol", "--oneliner", "show", "node"]))
    known = [(_node(fields), fields.get("Partitions", "").split(",")) for fields in nodes]
    found = []
    for fields in records(ask(["scontrol", "--oneliner", "show", "partition"])):
        name = fields.get("PartitionName", "")
        found.append(_partition(fields, tuple(node for node, where in known if name in where)))
    return found


def _node(fields: Mapping[str, str]) -> Node:
    return Node(
        name=fields.get("NodeName", ""),
        # Since 22.05: without CPUs that Slurm reserves for itself.
        cpus=number(fields.get("CPUEfctv")) or number(fields.get("CPUTot")) or 1,
        memory_mb=(number(fields.get("RealMemory")) or 1) - (number(fields.get("MemSpecLimit")) or 0),
        gpus=gpus(fields.get("Gres", "")),
        state=fields.get("State", "UNKNOWN"),
        threads_per_core=number(fields.get("ThreadsPerCore")) or 1,
    )


def _partition(fields: Mapping[str, str], nodes: tuple[Node, ...]) -> Partition:
    seconds = seconds_left(fields.get("MaxTime", "UNLIMITED"))
    return Partition(
        name=fields.get("PartitionName", ""),
        is_default=fields.get("Default") == "YES",
        state=fields.get("State", "UP"),
        max_minutes=seconds if math.isinf(seconds) else seconds // 60,
        max_nodes=number(fields.get("MaxNodes")),
        max_memory_mb=number(fields.get("MaxMemPerNode")),
        nodes=nodes,
    )
