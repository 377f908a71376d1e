"""The cost of collectives, on a ring or by doubling and halving: fixed seconds, and seconds per byte.

Thakur et al., "Optimization of collective communication operations in MPICH", 2005; links are defined in
`benchmarks.simulation.cluster`.
"""

import math
from dataclasses import dataclass

from benchmarks.simulation.cluster import Cluster, Link


@dataclass(frozen=True)
class Cost:
    """Seconds of one collective: `latency` + `per_byte` x bytes."""

    latency: float
    per_byte: float

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of two collectives in sequence, with the same bytes."""
        return Cost(self.latency + other.latency, self.per_byte + other.per_byte)


FREE = Cost(0.0, 0.0)


def steps_of(ranks: int, algorithm: str) -> int:
    """Return the number of steps in which one rank's part reaches all `ranks`, for a cluster's `algorithm`."""
    return ranks - 1 if algorithm == "ring" else math.ceil(math.log2(ranks))


def reduce_scatter(ranks: int, link: Link, algorithm: str) -> Cost:
    """Return the cost of a reduce-scatter among `ranks`, per byte of the whole tensor."""
    latency = steps_of(ranks, algorithm) * link.latency_seconds
    return Cost(latency, (ranks - 1) / ranks / link.bandwidth_bytes_per_second)


def all_reduce(ranks: int, link: Link, algorithm: str) -> Cost:
    """Return the cost of an all-reduce among `ranks`, per byte of the tensor: the cost of its two halves."""
    half = reduce_scatter(ranks, link, algorithm)
    return half + half


def all_gather(ranks: int, link: Link, algorithm: str) -> Cost:
    """Return the cost of an all-gather among `ranks`, per byte of one rank's payload, the largest."""
    latency = steps_of(ranks, algorithm) * link.latency_seconds
    return Cost(latency, (ranks - 1) / link.bandwidth_bytes_per_second)


@dataclass(frozen=True)
class Paths:
    """The costs of a message among some ranks of a cluster."""

    gather: Cost
    """Per byte of a rank's payload; by node, of the payloads of all its ranks together."""
    reduce: Cost
    """Per byte of a dense tensor."""
    in_node: Cost
    """Per byte of a dense tensor: before the message to sum a node's gradients, and after it to gather their averages.
    Nothing if ranks are flat."""
    peers: int
    """Payloads that a rank receives, including its own."""
    slices: int
    """Number of slices in which a node's ranks share a tensor."""


def paths(cluster: Cluster, ranks: int, hierarchy: str) -> Paths:
    """Return the costs of messages among `ranks` of a cluster; `hierarchy`: flat, or node.

    Flat: all ranks form one ring in the order of nodes, which is as fast as its slowest link. Node: a node's ranks
    first sum their gradients, in slices; each rank compresses one slice and exchanges it with its counterparts on other
    nodes, over the node's one link; then each node gathers the averages, dense.
    """
    in_node = min(ranks, cluster.ranks_per_node)
    nodes = ranks // in_node
    inner, outer = cluster.in_node, cluster.between_nodes
    message = Cost(cluster.message_seconds, 0.0)
    if hierarchy == "flat":
        link = _slowest([one for one in (inner if in_node > 1 else None, outer if nodes > 1 else None) if one])
        if link is None:
            return Paths(message, message, FREE, 1, 1)
        gather = message + all_gather(ranks, link, cluster.algorithm)
        return Paths(gather, message + all_reduce(ranks, link, cluster.algorithm), FREE, ranks, 1)
    scatter = FREE if inner is None or in_node == 1 else message + reduce_scatter(in_node, inner, cluster.algorithm)
    if outer is None or nodes == 1:
        return Paths(FREE, FREE, scatter, 1, in_node)
    gather = message + all_gather(nodes, outer, cluster.algorithm)
    return Paths(gather, message + all_reduce(nodes, outer, cluster.algorithm), scatter, nodes, in_node)


def _slowest(links: list[Link]) -> Link | None:
    """Return a link with the slowest latency and the slowest bandwidth of the links; None if there are none."""
    if not links:
        return None
    return Link(
        latency_seconds=max(link.latency_seconds for link in links),
        bandwidth_bytes_per_second=min(link.bandwidth_bytes_per_second for link in links),
    )
