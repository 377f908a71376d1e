"""Measure the links between ranks, and write them as a cluster for `python -m benchmarks simulate --cluster FILE`."""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.analysis.statistics import median_interval
from benchmarks.core.checks import allow, integer, seconds
from benchmarks.core.devices import wanted_device
from benchmarks.core.files import save_text, writable
from benchmarks.core.provenance import provenance
from benchmarks.doctor.child import own_environment
from benchmarks.doctor.finding import Finding, failed, last_words, not_run, ok
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

    Args:
        level: in_node or between_nodes.
        ranks: the reports of `benchmarks.doctor.in_child`; the slowest rank of each round counts.
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


# --- the measurement ---

NAME = "links"
RANKS = 2
CURE = "start it as cells will be started: srun -N2 -n4 python -m benchmarks doctor --links FILE, or by torchrun"


@dataclass(frozen=True)
class Place:
    """This process's place among a launcher's ranks."""

    rank: int
    size: int
    ranks_per_node: int
    meeting_place: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("links")
    text = "measure the links between ranks instead, and write them as a cluster for simulate --cluster FILE"
    group.add_argument("--links", metavar="FILE", type=Path, help=text)
    text = "ranks that are started on this machine, where no launcher has started several (default: %(default)s)"
    group.add_argument("--ranks", type=int, default=RANKS, help=text)


def refuse_options(args: argparse.Namespace) -> None:
    """Raise ConfigError, with one line, for options that conflict with --links or need it."""
    if args.links is None and args.ranks != RANKS:
        raise ConfigError("ranks: --ranks is not allowed without --links; add it, or leave this out")
    if args.links is not None:
        for name, value in (("slurm", args.slurm), ("only", args.only), ("gpu", args.gpu)):
            if value:
                raise ConfigError(f"{name}: --{name} is not allowed with --links; leave it out")
        if args.links.suffix not in (".yaml", ".yml"):
            raise ConfigError(f"links: {args.links} is not allowed; give a file that ends with .yaml")


def place_of(environment: Mapping[str, str], folder: Path) -> Place | None:
    """Return this process's place among the ranks of torchrun or of a Slurm step; None if it is alone.

    folder: where ranks of a Slurm step meet; all nodes must see it. Raises ConfigError if nodes have unequal numbers of
    ranks, if a node's ranks are not consecutive, or if a variable is missing or is not a number.
    """
    number = partial(_number, environment)
    if "MASTER_ADDR" in environment and "LOCAL_WORLD_SIZE" in environment:
        rank, size, local = number("RANK"), number("WORLD_SIZE"), number("LOCAL_WORLD_SIZE")
        node = number("GROUP_RANK") if "GROUP_RANK" in environment else rank // max(local, 1)
        meeting_place = "env://"
    elif environment.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "SLURM_PROCID" in environment:
        rank, size = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS")
        nodes, node = max(number("SLURM_STEP_NUM_NODES"), 1), number("SLURM_NODEID")
        local = size // nodes if size % nodes == 0 else 0
        step = f"{number('SLURM_JOB_ID')}.{number('SLURM_STEP_ID')}"
        meeting_place = f"file://{folder.resolve()}/.doctor-links-{step}"
    else:
        return None
    if not local or size % local or node != rank // local:
        raise ConfigError(
            f"links: the {size} ranks are not spread over nodes evenly, one node after the other; give each node as "
            "many, and srun --distribution=block"
        )
    return Place(rank, size, local, meeting_place) if size > 1 else None


def _number(environment: Mapping[str, str], name: str) -> int:
    given = environment.get(name, "")
    allow(name, given, given.isdecimal(), "a whole number, as torchrun and srun set it, or unset what they set")
    return int(given)


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
