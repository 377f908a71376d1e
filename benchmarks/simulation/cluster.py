"""A cluster as validated values: its device, links and number of ranks."""

import math
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.core.checks import allow, integer, is_number
from resireduce.errors import ConfigError, check_share, choose

MOST_RANKS = 4096
"""As many as `plan` accepts."""
ALGORITHMS = ("ring", "recursive")
"""Algorithm of collectives: a ring, or doubling and halving (Thakur et al., "Optimization of collective communication
operations in MPICH", 2005), which sends as many bytes in log2(ranks) steps."""
EXAMPLES = {
    "bandwidth_bytes_per_second": "bytes a second, such as 3.125e9 for 25 Gbit/s",
    "latency_seconds": "seconds, such as 1.4e-5",
    "flops_per_second": "operations a second, such as 19.5e12",
    "memory_bytes_per_second": "bytes a second, such as 2.039e12",
    "memory_bytes": "bytes, such as 80.0e9",
    "nodes": "their number",
    "ranks_per_node": "their number",
    "device": "a known one's name, or its figures",
}
"""What to give in each field, for error messages."""
MAY_BE_ZERO = ("latency_seconds", "launch_seconds", "message_seconds", "jitter_seconds")


@dataclass(frozen=True, kw_only=True)
class Link:
    """One level of the network. Raises ConfigError for an invalid field."""

    latency_seconds: float
    """From a rank to its neighbour."""
    bandwidth_bytes_per_second: float
    """Bandwidth in one direction: of a rank within a node, or of a whole node between nodes."""
    source: str = ""

    def __post_init__(self) -> None:
        _check_values(self)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device on which one rank computes. Raises ConfigError for an invalid field."""

    name: str
    flops_per_second: float
    memory_bytes_per_second: float
    memory_bytes: float
    launch_seconds: float = 5e-6
    """Seconds from issuing the smallest operation until it is done."""
    flops_share: float = 0.5
    """Share of the operations per second that training reaches; an assumption unless measured."""
    memory_share: float = 0.8
    """Share of the bytes per second that training reaches; likewise."""
    source: str = ""

    def __post_init__(self) -> None:
        _check_values(self)

    @property
    def flops(self) -> float:
        """Operations per second that training reaches."""
        return self.flops_per_second * self.flops_share

    @property
    def bytes_per_second(self) -> float:
        """Bytes of memory per second that training reaches."""
        return self.memory_bytes_per_second * self.memory_share


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes with equal numbers of ranks. Raises ConfigError for an invalid field."""

    name: str
    nodes: int
    ranks_per_node: int
    device: Device
    in_node: Link | None = None
    """None only if a node has one rank."""
    between_nodes: Link | None = None
    """None only if there is one node."""
    message_seconds: float = 0.0
    """Cost of each collective apart from its steps: kernels, negotiation."""
    algorithm: str = "ring"
    jitter_seconds: float = 0.0
    """Mean delay of a rank, exponentially distributed: the latest of N ranks is late by this x (1 + 1/2 + ... 1/N) on
    average."""
    source: str = ""

    def __post_init__(self) -> None:
        integer("nodes", self.nodes, 1, MOST_RANKS)
        integer("ranks_per_node", self.ranks_per_node, 1, MOST_RANKS)
        choose("algorithm", self.algorithm, ALGORITHMS)
        _check_values(self)
        if self.in_node is None and self.ranks_per_node > 1:
            raise ConfigError(f"in_node: missing, with {self.ranks_per_node} ranks in a node; give its link's figures")
        self.check_ranks(self.ranks)

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node

    def check_ranks(self, ranks: object) -> int:
        """Return `ranks` if they fit in one node or fill whole nodes, however many. Raises ConfigError otherwise."""
        count = integer("ranks", ranks, 1, MOST_RANKS)
        if count > self.ranks_per_node and count % self.ranks_per_node:
            raise ConfigError(
                f"ranks: {count} is not allowed on {self.name}; give a multiple of the {self.ranks_per_node} of a node"
            )
        if count > self.ranks_per_node and self.between_nodes is None:
            raise ConfigError(
                f"between_nodes: missing, with {count} ranks, {self.ranks_per_node} in a node; give its link's figures"
            )
        return count


def _check_values(given: Any) -> None:
    """Raise ConfigError for the first value of a dataclass that is no text or number, not finite, or out of range."""
    for field in fields(given):
        value, name = getattr(given, field.name), field.name
        if field.type is str:
            allow(name, value, isinstance(value, str), "a text, in quotes if YAML takes it for something else")
        if field.type is not float:
            continue
        if name.endswith("_share"):
            check_share(name, value)
        is_there = is_number(value) and math.isfinite(value) and (value > 0 or (value == 0 and name in MAY_BE_ZERO))
        lowest = "0 or more" if name in MAY_BE_ZERO else "more than 0"
        allow(name, value, is_there, f"{EXAMPLES.get(name, 'seconds, such as 1e-5')}, {lowest}")
