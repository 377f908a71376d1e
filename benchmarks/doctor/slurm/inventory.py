"""The cluster as described by scontrol: its settings, partitions and nodes."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.doctor.slurm.slurm_programs import Ask, gpus, number, records, settings
from benchmarks.launching.slurm.job import seconds_left

UNUSABLE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "FUTURE", "UNKNOWN", "INVAL", "INVALID_REG"),
    *("MAINT", "NOT_RESPONDING", "POWERING_DOWN", "REBOOT", "REBOOT_ISSUED"),
}
"""Words in a node's state for which no job starts on it now. A node switched off to save power is switched on again."""


class Unanswered(RuntimeError):
    """One of Slurm's programs did not answer; the message is one line."""


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
    reason: str
    """The administrator's reason why it is not used; empty otherwise."""
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


@dataclass(frozen=True)
class Inventory:
    """Everything asked for before a job is submitted."""

    settings: Mapping[str, str]
    partitions: tuple[Partition, ...]

    def setting(self, name: str) -> str:
        """Return a setting of slurm.conf; empty if Slurm does not report it."""
        return self.settings.get(name, "")


def look(ask: Ask) -> Inventory:
    """Ask scontrol. Raises Unanswered if it does not answer."""
    config = settings(_answer(ask, "config"))
    nodes = [(_node(fields), fields.get("Partitions", "").split(",")) for fields in records(_answer(ask, "node"))]
    found = []
    for fields in records(_answer(ask, "partition")):
        name = fields.get("PartitionName", "")
        found.append(_partition(fields, tuple(node for node, where in nodes if name in where)))
    return Inventory(config, tuple(found))


def _answer(ask: Ask, what: str) -> str:
    oneline = [] if what == "config" else ["--oneliner"]
    answer = ask(["scontrol", *oneline, "show", what])
    if answer.error:
        raise Unanswered(answer.error)
    return answer.text


def _node(fields: Mapping[str, str]) -> Node:
    return Node(
        name=fields.get("NodeName", ""),
        # Since 22.05: without CPUs that Slurm reserves for itself.
        cpus=number(fields.get("CPUEfctv")) or number(fields.get("CPUTot")) or 1,
        memory_mb=(number(fields.get("RealMemory")) or 1) - (number(fields.get("MemSpecLimit")) or 0),
        gpus=gpus(fields.get("Gres", "")),
        state=fields.get("State", "UNKNOWN"),
        reason=fields.get("Reason", ""),
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
