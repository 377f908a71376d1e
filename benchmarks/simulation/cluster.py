"""A cluster as validated values, read from YAML, and what collectives take on it."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.core.checks import allow, integer, is_number, is_text, mapping, within
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError, check_share, choose

MOST_RANKS = 4096
"""As many as `plan` accepts."""
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
    jitter_seconds: float = 0.0
    """Mean delay of a rank, exponentially distributed: the latest of N ranks is late by this x (1 + 1/2 + ... 1/N) on
    average."""
    source: str = ""

    def __post_init__(self) -> None:
        integer("nodes", self.nodes, 1, MOST_RANKS)
        integer("ranks_per_node", self.ranks_per_node, 1, MOST_RANKS)
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
    """Raise ConfigError for the first number of a dataclass that is none, not finite, or out of range."""
    for field in fields(given):
        value, name = getattr(given, field.name), field.name
        if field.type is not float:
            continue
        if name.endswith("_share"):
            check_share(name, value)
        is_there = is_number(value) and math.isfinite(value) and (value > 0 or (value == 0 and name in MAY_BE_ZERO))
        allow(name, value, is_there, f"a number, {'0 or more' if name in MAY_BE_ZERO else 'more than 0'}")


# --- From YAML ---

PRESETS = ROOT / "benchmarks/simulation/clusters.yaml"
ENDINGS = (".yaml", ".yml")
HOLDS, EXAMPLE = "the fields of a cluster, as nodes: 4", "benchmarks/simulation/clusters.yaml"
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("device", Device, "devices"),
    ("in_node", Link, "links"),
    ("between_nodes", Link, "links"),
)
"""Fields of a cluster that are mappings, or names of mappings in the presets."""


def presets() -> dict[str, Cluster]:
    """Return the clusters that come with the suite, by name."""
    known = read_yaml(PRESETS)
    with within(PRESETS.name):
        return {name: _cluster(one, name, known) for name, one in known["clusters"].items()}


def find_cluster(given: str) -> Cluster:
    """Return the preset called `given`, or the cluster in the YAML file at that path. Raises ConfigError, one line."""
    if given.endswith(ENDINGS):
        values = read_yaml(Path(given), "cluster", "a preset's name, or the file of a cluster", HOLDS, EXAMPLE)
        with within(given):
            return _cluster(values, Path(given).stem, read_yaml(PRESETS))
    return presets()[choose("cluster", given, read_yaml(PRESETS)["clusters"])]


def _cluster(given: Mapping[str, Any], name: str, known: Mapping[str, Any]) -> Cluster:
    """Return the cluster from plain values; `known` has the devices and links that it may name."""
    parts = {
        key: _part(key, given[key], kind, known[listed]) for key, kind, listed in PARTS if given.get(key) is not None
    }
    found: Cluster = _made(Cluster, {"name": name, **given, **parts})
    return found


def _part(key: str, given: Any, kind: Any, known: Mapping[str, Any]) -> Any:
    """Return the device or link under a cluster's `key`, given by a known name or as its own mapping."""
    with within(key):
        named = is_text(given)
        values = mapping(key, known[choose(key, given, known)] if named else given)
        return _made(kind, ({"name": given if named else "own"} if kind is Device else {}) | values)


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return a dataclass from values by field. Raises ConfigError for one that is missing, unknown or invalid."""
    values = {name: value for name, value in given.items() if value is not None}
    for field in fields(kind):
        if field.type is float and isinstance(values.get(field.name), str):
            with suppress(ValueError):  # YAML reads 3.125e9, whose exponent has no sign, as text
                values[field.name] = float(values[field.name])
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"fields: {str(error).partition('() ')[2]}; give those of docs/simulate.md") from None


# --- Collectives ---


@dataclass(frozen=True)
class Cost:
    """Seconds of one collective: `latency` + `per_byte` x bytes."""

    latency: float
    per_byte: float

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of two collectives in sequence, with the same bytes."""
        return Cost(self.latency + other.latency, self.per_byte + other.per_byte)


FREE = Cost(0.0, 0.0)


def reduce_scatter(ranks: int, link: Link) -> Cost:
    """Return the cost of a reduce-scatter in a ring of `ranks`, per byte of the whole tensor."""
    return Cost((ranks - 1) * link.latency_seconds, (ranks - 1) / ranks / link.bandwidth_bytes_per_second)


def all_reduce(ranks: int, link: Link) -> Cost:
    """Return the cost of an all-reduce among `ranks`, per byte of the tensor: the cost of its two halves."""
    half = reduce_scatter(ranks, link)
    return half + half


def all_gather(ranks: int, link: Link) -> Cost:
    """Return the cost of an all-gather among `ranks`, per byte of one rank's payload, the largest."""
    return Cost((ranks - 1) * link.latency_seconds, (ranks - 1) / link.bandwidth_bytes_per_second)


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
    inner, outer, message = cluster.in_node, cluster.between_nodes, Cost(cluster.message_seconds, 0.0)
    used = [link for link, count in ((inner, in_node), (outer, ranks // in_node)) if link is not None and count > 1]
    if hierarchy == "flat":
        link = Link(
            latency_seconds=max(one.latency_seconds for one in used),
            bandwidth_bytes_per_second=min(one.bandwidth_bytes_per_second for one in used),
        )
        return Paths(message + all_gather(ranks, link), message + all_reduce(ranks, link), FREE, ranks, 1)
    (inner, outer), nodes = used, ranks // in_node
    gather, reduce = message + all_gather(nodes, outer), message + all_reduce(nodes, outer)
    return Paths(gather, reduce, message + reduce_scatter(in_node, inner), nodes, in_node)
