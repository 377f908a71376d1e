"""What steps are made of, as `python -m benchmarks testbed` has measured it apart from the steps that are compared."""

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
from resireduce.merging.arrivals import Array
from resireduce.merging.costs import line_through

REDUCE, REDUCE_HALF, GATHER = "all_reduce", "all_reduce_half", "all_gather"


@dataclass(frozen=True)
class Sending:
    """What one kind of collective takes on one level."""

    in_turn: Cost
    """From its launch until it has come, by itself."""
    at_once: Cost
    """By how much later one comes for each other that is under way."""
    processor: Cost
    """Of one rank's processor."""
    curve: Curve
    """At once, from each size that was measured to the next: what is small is not slowed as what is large."""

    @property
    def trailing(self) -> float:
        """Seconds that a message is still under way when the next may follow."""
        return max(self.in_turn.latency - self.at_once.latency, 0.0)


@dataclass(frozen=True)
class Measured:
    """One setting's inputs. Seconds are those of ranks that share their processors, as in the steps."""

    nodes: int
    ranks_per_node: int
    rate: str
    values: Mapping[str, Any]
    """Plain, as saved."""

    def passes(self, layers: Layers, hierarchy: str) -> tuple[float, Array, float]:
        """Return the forward pass, the backward pass before each gradient of `layers`, and the rest of a step.

        hierarchy: flat or node, with what the library does for it beside messages and compression. Raises ConfigError
        if they are those of another model.
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
        """Return seconds by elements to compress a tensor, and to average what so many `peers` have sent of it.

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
        """Return what collectives of a `kind` take on a `level`: flat, between or in_node. By bytes of a rank."""
        rows = self.values["messages"][f"{level} {kind}"]
        sizes = np.array([row["bytes"] for row in rows], dtype=float)
        seconds = {key: np.array([row[key] for row in rows]) for key in ("in_turn", "at_once", "processor")}
        in_turn, at_once, processor = (Cost(*line_through(sizes, one)) for one in seconds.values())
        rising = np.maximum.accumulate(seconds["at_once"])
        curve = Curve.through([row["bytes"] for row in rows], [float(one) for one in rising])
        return Sending(in_turn, at_once, processor, curve)

    @property
    def busy_share(self) -> float:
        """Seconds by which a second of each rank's processor time delays what all of them compute.

        If processors are fewer than ranks, all of it; if there are more than enough, nothing.
        """
        share = self.nodes * self.ranks_per_node / self.values["cores"]
        return share if share >= 1 else 0.0

    def cluster(self) -> Cluster:
        """Return the cluster of these nodes, whose links are those of a ring that takes as long."""
        between = self._link("between" if self.ranks_per_node > 1 else "flat", self.nodes)
        in_node = self._link("in_node", self.ranks_per_node) if self.ranks_per_node > 1 else None
        copied = float(self.values["copied_bytes_per_second"])
        # Nothing goes by operations, and nothing must fit: passes are measured.
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
    """Return the record of `python -m benchmarks testbed` at `path`. Raises ConfigError, one line, for another file."""
    try:
        found: Mapping[str, Any] = load_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"measured: {path} cannot be read: {error}; {MAKE}") from None
    check_form(found, f"measured: {path}")
    return found
