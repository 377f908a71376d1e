"""Write this cluster's links, from timed gathers, as a file for `python -m benchmarks simulate --cluster FILE`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from benchmarks.analysis.statistics import median_interval
from benchmarks.core.provenance import provenance
from resireduce.merging.costs import line_through

LEVELS = ("in_node", "between_nodes")
DEVICE = ("flops_per_second", "memory_bytes_per_second", "launch_seconds")
HEAD = (
    "# Measured by: python -m benchmarks doctor --links FILE\n"
    "# Simulate it with: python -m benchmarks simulate --cluster FILE\n"
)


def link_of(level: str, ranks: Sequence[Mapping[str, Any]], ranks_per_node: int) -> dict[str, Any]:
    """Return alpha and beta of a level's link, as medians over all rounds of gathers, with their 95 % intervals.

    Args:
        level: in_node or between_nodes.
        ranks: the reports of `benchmarks.doctor.link_ranks`; the slowest rank of each round counts.
        ranks_per_node: ranks of a node, which all send over its one link at the same time.

    A gather among N ranks takes (N - 1) (alpha + bytes / bandwidth) on a ring. Bandwidth between nodes is that of a
    whole node.
    """
    count = ranks_per_node if level == "in_node" else len(ranks) // ranks_per_node
    sharing = 1 if level == "in_node" else ranks_per_node
    sizes = np.array(ranks[0]["sizes"], dtype=float)
    rounds = np.max([[one[level] for one in rank["rounds"]] for rank in ranks], axis=0)
    lines = [line_through(sizes, seconds) for seconds in rounds]
    latency = median_interval([start / (count - 1) for start, _ in lines])
    bandwidth = median_interval([sharing * (count - 1) / max(each, 1e-15) for _, each in lines])
    said = (
        f"{len(rounds)} rounds, {ranks[0]['backend']}; 95 % intervals: latency {latency[1]:.3g} to {latency[2]:.3g} s, "
        f"bandwidth {bandwidth[1]:.3g} to {bandwidth[2]:.3g} bytes/s"
    )
    return {"latency_seconds": latency[0], "bandwidth_bytes_per_second": bandwidth[0], "source": said}


def cluster_of(ranks: Sequence[Mapping[str, Any]], ranks_per_node: int) -> dict[str, Any]:
    """Return the plain values of the file: nodes, ranks per node, links, and the slowest rank's device figures."""
    device: dict[str, Any] = {key: min(rank[key] for rank in ranks) for key in DEVICE[:2]}
    device |= {"launch_seconds": max(rank["launch_seconds"] for rank in ranks)}
    device |= {"memory_bytes": float(ranks[0]["memory_bytes"]), "flops_share": 1.0, "memory_share": 1.0}
    levels = [level for level in LEVELS if level in ranks[0]["rounds"][0]]
    here = provenance()
    return {
        "nodes": len(ranks) // ranks_per_node,
        "ranks_per_node": ranks_per_node,
        "device": device,
        **{level: link_of(level, ranks, ranks_per_node) for level in levels},
        "source": f"measured on {here['cpu']}, {here['cores']} cores, {here['date']}",
    }


def text_of(cluster: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return HEAD + yaml.safe_dump(dict(cluster), sort_keys=False, width=120)
