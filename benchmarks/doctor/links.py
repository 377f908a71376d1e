"""Measure the links between ranks, and write them as a cluster for `python -m benchmarks simulate --cluster FILE`."""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.analysis.statistics import median_interval
from benchmarks.core.checks import integer, seconds
from benchmarks.core.devices import wanted_device
from benchmarks.core.files import save_text, writable
from benchmarks.core.provenance import provenance
from benchmarks.doctor.machine_checks import Finding, failed, last_words, not_run, ok, own_environment
from benchmarks.launching.processes import Job, Run, run_together
from resireduce.errors import ConfigError
from resireduce.merging.rules import line_through

# --- the file ---

LEVELS = ("in_node", "between_nodes")
DEVICE = ("flops_per_second", "memory_bytes_per_second", "launch_seconds")
HEAD = (
    "# Measured by: python -m benchmarks doctor --links FILE\n"
    "# Simulate it with: python -m benchmarks simulate --cluster FILE\n"
)


def link_of(level: str, ranks: Sequence[Mapping[str, Any]], ranks_per_node: int) -> dict[str, Any]:
    """Return alpha and beta of a level's link, as medians over all rounds of gathers, with their 95 % intervals.

    ranks: the reports of `benchmarks.doctor.in_child`; the slowest rank of each round counts. A gather among N ranks
    takes (N - 1) (alpha + bytes / bandwidth) on a ring. Ranks of a node all send over its one link at the same time,
    and bandwidth between nodes is that of a whole node.
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


# --- the measurement ---

NAME = "links"
RANKS = 2
CURE = "start it as cells will be started: srun -N2 -n4 python -m benchmarks doctor --links FILE"


@dataclass(frozen=True)
class Place:
    """A rank's place among the others."""

    rank: int
    size: int
    ranks_per_node: int
    meeting_place: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "ranks that --links starts on this machine, where srun has not started several (default: %(default)s)"
    parser.add_argument("--ranks", type=int, default=RANKS, help=text)


def place_of(environment: Mapping[str, str], folder: Path) -> Place | None:
    """Return this process's place among the ranks of a Slurm step; None if it is alone.

    folder: where the ranks meet; all nodes must see it. Raises ConfigError if nodes have unequal numbers of ranks, or a
    node's ranks are not consecutive.
    """
    if environment.get("SLURM_STEP_NUM_TASKS", "1") == "1" or "SLURM_PROCID" not in environment:
        return None
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_NODEID")
    rank, size, nodes, node = (int(environment[name]) for name in names)
    local = size // nodes
    if size % nodes or node != rank // local:
        raise ConfigError(
            f"links: the {size} ranks are not spread over nodes evenly, one node after the other; give each node as "
            "many, and srun --distribution=block"
        )
    step = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    return Place(rank, size, local, f"file://{folder.resolve()}/.doctor-links-{step}")


def measure(args: argparse.Namespace, run: Run = run_together) -> list[Finding]:
    """Measure, write the file, and return a finding for each level. Raises ConfigError before any work."""
    count, limit = integer("ranks", args.ranks, 2, 64), seconds("timeout", args.timeout)
    writable("links", args.links)
    place = place_of(os.environ, args.links.parent)
    with tempfile.TemporaryDirectory() as folder:
        if place is None:
            places = [Place(rank, count, count, f"file://{folder}/meet") for rank in range(count)]
        else:
            places = [place]
        ended = run([_job(one, place is None) for one in places], limit)
    reports = [report for one in ended for report in one.reports()]
    if any(one.code for one in ended) or len(reports) != len(places):
        said = next((last_words(one.output) for one in ended if one.code), "no rank came to its end in time")
        return [failed(NAME, f"links could not be timed: {said}", CURE)]
    if places[0].rank:
        return [not_run(NAME, "rank 0 writes the file")]
    ranks = next(report["ranks"] for report in reports if report["ranks"])
    found = cluster_of(ranks, places[0].ranks_per_node)
    save_text(HEAD + yaml.safe_dump(found, sort_keys=False, width=120), args.links)
    levels = [ok(NAME, f"{level}: {found[level]['source']}") for level in LEVELS if level in found]
    return [*levels, ok(NAME, f"{args.links} is written; next: python -m benchmarks simulate --cluster {args.links}")]


def _job(place: Place, is_alone: bool) -> Job:
    """Return the process of one rank; if `is_alone`, ranks meet on this machine's loopback interface."""
    line = [sys.executable, "-m", "benchmarks.doctor.in_child", "links", place.meeting_place, str(place.ranks_per_node)]
    own = {"RANK": str(place.rank), "WORLD_SIZE": str(place.size)}
    own |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} if is_alone else {}
    own |= {"CUDA_VISIBLE_DEVICES": ""} if wanted_device() == "cpu" else {}
    return Job(line, own_environment(**own))
