"""Small clusters and models for the simulator, and one step of them gone through event by event, in plain Python."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.simulation.cluster import Cluster, Device, Link
from benchmarks.simulation.results import Rows, Settings
from benchmarks.simulation.wire import Layers

FAST = Device(
    name="fast", flops_per_second=1e13, memory_bytes_per_second=1e12, memory_bytes=1e11, flops_share=1, memory_share=1
)
EXACT = replace(FAST, memory_bytes_per_second=1e30, launch_seconds=0.0)
"""Nothing that goes through memory takes any time."""


def make_layers(sizes: Sequence[tuple[int, ...]]) -> Layers:
    """Layers without a recipe: their backward pass goes by elements."""
    names = tuple(f"layer{number}" for number in range(len(sizes)))
    nothing = np.zeros((0, 2))
    kinds = ("other",) * len(sizes)
    return Layers("made", 0, names, tuple(sizes), kinds, "sgd", nothing, (nothing,) * len(sizes), 0)


def drawn_layers(seed: int, count: int) -> Layers:
    """Matrices of 100 to 1,000 rows and columns."""
    own = np.random.default_rng(seed)
    return make_layers([tuple(int(one) for one in own.integers(100, 1000, 2)) for _ in range(count)])


def make_cluster(
    latency: float = 1e-4, bandwidth: float = 1e9, nodes: int = 4, ranks_per_node: int = 1, **more: Any
) -> Cluster:
    """Nodes of ranks; within a node the link is ten times as fast."""
    return Cluster(
        name="made",
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        device=more.pop("device", FAST),
        in_node=Link(latency_seconds=latency / 10, bandwidth_bytes_per_second=bandwidth * 10),
        between_nodes=Link(latency_seconds=latency, bandwidth_bytes_per_second=bandwidth),
        **more,
    )


def make_settings(layers: Layers, compute_seconds: float = 0.03, **more: Any) -> Settings:
    """Both passes take so long together, whatever the device."""
    return Settings(layers, compute_seconds=compute_seconds, **more)


def walked(rows: Rows, ends: np.ndarray, whole: bool, cycle: float = 0.0) -> float:
    """The end of one case's step, message after message, each through one stream after the other."""
    seconds = lambda elements: float(rows.compress(np.array([float(elements)]))[0])  # noqa: E731
    clock = {"compute": 0.0, "sum": 0.0, "send": 0.0, "gather": 0.0}
    messages, begin = [], 0
    for place in np.flatnonzero(ends):
        messages.append(slice(begin, int(place) + 1))
        begin = int(place) + 1
    sent, delay = [], 0.0
    for message in messages:
        each = [
            seconds(elements) + more
            for elements, more in zip(rows.compressed[0, message], rows.more[0, message], strict=True)
        ]
        compress = seconds(rows.compressed[0, message].sum()) + rows.more[0, message].sum() if whole else sum(each)
        for number in range(message.start, message.stop):
            is_last = number == message.stop - 1
            own = compress if whole and is_last else 0.0 if whole else each[number - message.start]
            clock["compute"] += rows.backward[0, number] + delay + own
            moved, delay = rows.moved[0, number], rows.in_node_busy[0, number]
            around = rows.in_node_latency[0] + rows.in_node_per_byte[0] * moved if moved else 0.0
            clock["sum"] = max(clock["sum"], clock["compute"] + rows.late[0]) + around
        delay += rows.busy_latency[0, message].max() + rows.busy_transfer[0, message].sum()
        ready = clock["sum"] if not cycle else np.ceil(clock["sum"] / cycle) * cycle
        several = (rows.nbytes[0, message] > 0).sum() > 1
        sending = rows.latency[0, message].max() + rows.transfer[0, message].sum()
        if rows.sending is not None:
            sending = rows.sending(rows.payload[:, message].sum(1))[0] + rows.beside[0, message].sum()
        clock["send"] = max(clock["send"], ready) + sending + (rows.copied[0, message].sum() if several else 0.0)
        gather = sum(rows.gather_latency[0] + rows.gather_per_byte[0] * one for one in rows.moved[0, message] if one)
        sent.append((clock["send"] + (rows.trailing[0] if sending else 0.0), rows.unpack[0, message].sum(), gather))
    for came, unpack, gather in sent:
        clock["gather"] = max(clock["gather"], came, clock["compute"]) + unpack + gather
    return float(rows.forward[0] + max(clock["gather"], clock["compute"]) + rows.settle[0] + rows.update[0])


def plain() -> Any:
    """A model without a recipe."""
    from torch import nn

    return nn.Linear(200, 300)
