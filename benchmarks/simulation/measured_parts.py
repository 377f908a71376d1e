"""The parts of steps, which `python -m benchmarks testbed` measured separately from the steps compared with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.files import load_json
from benchmarks.simulation.cluster import Cluster, Device, Link
from benchmarks.simulation.collectives import Cost, steps_of
from benchmarks.simulation.curve import Curve
from benchmarks.simulation.measured_form import MAKE, check_form
from benchmarks.simulation.model_layers import Layers
from resireduce.errors import ConfigError
from resireduce.merging.costs import line_through
from resireduce.merging.rules import Array

REDUCE, REDUCE_HALF, GATHER = "all_reduce", "all_reduce_half", "all_gather"


@dataclass(frozen=True)
class Sending:
    """The cost of one kind of collective on one level."""

    in_turn: Cost
    """From launch to completion, one at a time."""
    at_once: Cost
    """Delay of a collective for each other one under way."""
    processor: Cost
    """Time of one rank's processor."""
    curve: Curve
    """The cost at once, piecewise through the measured sizes, so that small messages are not slowed like large ones."""

    @property
    def trailing(self) -> float:
        """Seconds for which a message is still under way when the next may follow."""
        return max(self.in_turn.latency - self.at_once.latency, 0.0)


@dataclass(frozen=True)
class Measured:
    """One setting's inputs. Ranks shared their processors while these were measured, as in the steps."""

    nodes: int
    ranks_per_node: int
    rate: str
    values: Mapping[str, Any]
    """Plain values, as saved."""

    def passes(self, layers: Layers, hierarchy: str) -> tuple[float, Array, float]:
        """Return the forward pass, the backward pass before each gradient of `layers`, and the rest of a step.

        hierarchy: flat or node; includes the library's work for it apart from messages and compression. Raises
        ConfigError if the record is of another model.
        """
        measured = self.values["passes"][hierarchy]
        arrived = measured["arrived_seconds"]
        if missing := set(layers.names) ^ set(arrived):
            raise ConfigError(f"measured: {min(missing)!r} is not in both the record and {layers.model}; {MAKE}")
        ready = np.maximum.accumulate([arrived[name] for name in layers.names])
        forward = float(measured["forward_seconds"])
        backward = np.maximum(np.diff(ready, prepend=forward), 0.0)
        return forward, backward, float(measured["step_seconds"]) - float(ready[-1])

    def compression(self, compressor: str, density: float, peers: int) -> tuple[Curve, Curve]:
        """Return the seconds, by elements, to compress a tensor and to average what `peers` ranks have sent of it.

        Raises ConfigError for a compressor that was not measured.
        """
        rows = [
            row for row in self.values["compression"] if (row["compressor"], row["density"]) == (compressor, density)
        ]
        if not rows:
            raise ConfigError(f"measured: compressor {compressor!r} at {density:g} is not in the record; {MAKE}")
        sizes = [row["elements"] for row in rows]
        averaging = [row["average_seconds"].get(str(peers), row["average_seconds"].get("1")) for row in rows]
        return Curve.through(sizes, [row["compress_seconds"] for row in rows]), Curve.through(sizes, averaging)

    def sending(self, level: str, kind: str) -> Sending:
        """Return the cost of collectives of a `kind` on a `level` (flat, between or in_node), per byte of a rank."""
        rows = self.values["messages"][f"{level} {kind}"]
        sizes = np.array([row["bytes"] for row in rows], dtype=float)
        seconds = {key: np.array([row[key] for row in rows]) for key in ("in_turn", "at_once", "processor")}
        in_turn, at_once, processor = (Cost(*line_through(sizes, one)) for one in seconds.values())
        rising = np.maximum.accumulate(seconds["at_once"])
        curve = Curve.through([row["bytes"] for row in rows], [float(one) for one in rising])
        return Sending(in_turn, at_once, processor, curve)

    @property
    def busy_share(self) -> float:
        """Delay of all ranks' computing, in seconds per second of processor time of each rank.

        It is ranks / processors if there are no more processors than ranks, else 0.
        """
        share = self.nodes * self.ranks_per_node / self.values["cores"]
        return share if share >= 1 else 0.0

    def cluster(self) -> Cluster:
        """Return the cluster of these nodes, with the links of a ring that takes the measured time."""
        between = self._link("between" if self.ranks_per_node > 1 else "flat", self.nodes)
        in_node = self._link("in_node", self.ranks_per_node) if self.ranks_per_node > 1 else None
        copied = float(self.values["copied_bytes_per_second"])
        # Operations and memory do not matter, as passes are measured.
        device = Device(name="measured", flops_per_second=1.0, memory_bytes_per_second=copied, memory_bytes=1.0)
        name = f"{self.nodes} x {self.ranks_per_node}, {self.rate}"
        return Cluster(
            name=name,
            nodes=self.nodes,
            ranks_per_node=self.ranks_per_node,
            device=device,
            in_node=in_node,
            between_nodes=between,
        )

    def _link(self, level: str, ranks: int) -> Link:
        cost, sharing = self.sending(level, REDUCE).in_turn, self.ranks_per_node if level == "between" else 1
        return Link(
            latency_seconds=cost.latency / (2 * steps_of(ranks, "ring")),
            bandwidth_bytes_per_second=sharing * 2 * (ranks - 1) / ranks / max(cost.per_byte, 1e-15),
        )


def read_measured(path: Path) -> Mapping[str, Any]:
    """Return a record of `python -m benchmarks testbed`. Raises ConfigError, with one line, for any other file."""
    try:
        found: Mapping[str, Any] = load_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"measured: {path} cannot be read: {error}; {MAKE}") from None
    check_form(found, f"measured: {path}")
    return found
