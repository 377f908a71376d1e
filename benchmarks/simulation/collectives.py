"""What collectives cost: seconds whatever is sent, and seconds for each byte; of a ring, or of doubling and halving.

Thakur et al., "Optimization of collective communication operations in MPICH", 2005; links are those of
`benchmarks.simulation.cluster`.
"""

import math
from dataclasses import dataclass

from benchmarks.simulation.cluster import Cluster, Link


@dataclass(frozen=True)
class Cost:
    """What one collective takes, in seconds: `latency` + `per_byte` x bytes."""

    latency: float
    per_byte: float

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of one after the other, of the same bytes."""
        return Cost(self.latency + other.latency, self.per_byte + other.per_byte)


FREE = Cost(0.0, 0.0)


def steps_of(ranks: int, algorithm: str) -> int:
    """Return in how many steps one rank's part has come to all `ranks`, by an `algorithm` of the cluster's."""
    return ranks - 1 if algorithm == "ring" else math.ceil(math.log2(ranks))


def reduce_scatter(ranks: int, link: Link, algorithm: str) -> Cost:
    """Return the cost of a reduce-scatter among `ranks`, by bytes of the whole tensor."""
    latency = steps_of(ranks, algorithm) * link.latency_seconds
    return Cost(latency, (ranks - 1) / ranks / link.bandwidth_bytes_per_second)


def all_reduce(ranks: int, link: Link, algorithm: str) -> Cost:
    """Return the cost of an all-reduce among `ranks`, by bytes of the tensor: its two halves."""
    half = reduce_scatter(ranks, link, algorithm)
    return half + half


def all_gather(ranks: int, link: Link, algorithm: str) -> Cost:
    """Return the cost of an all-gather among `ranks`, by bytes of one rank's payload, the largest."""
    latency = steps_of(ranks, algorithm) * link.latency_seconds
    return Cost(latency, (ranks - 1) / link.bandwidth_bytes_per_second)


@dataclass(frozen=True)
class Paths:
    """What a message costs on its way, for so many ranks of a cluster."""

    gather: Cost
    """By bytes of a rank's payload; by node, of those of all its ranks together."""
    reduce: Cost
    """By bytes of a dense tensor."""
    in_node: Cost
    """By bytes of a dense tensor, before that to sum a node's gradients, and after it to gather their averages: nothing
    where ranks are flat."""
    peers: int
    """Payloads that a rank receives, its own included."""
    slices: int
    """In how many slices the ranks of a node share a tensor."""


def paths(cluster: Cluster, ranks: int, hierarchy: str) -> Paths:
    """Return what messages cost among `ranks` of a cluster; `hierarchy`: flat, or node.

    Flat: all ranks are one ring, in the order of nodes, which is as fast as its slowest link. Node: the gradients of a
    node's ranks are summed first, in slices, of which each rank compresses one and exchanges it with the same of the
    other nodes, by way of the node's one link; then each node gathers the averages, dense.
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
    """Return a link with the latency and the bandwidth of the slowest; None of none."""
    if not links:
        return None
    return Link(
        latency_seconds=max(link.latency_seconds for link in links),
        bandwidth_bytes_per_second=min(link.bandwidth_bytes_per_second for link in links),
    )
