"""Checks of what the command line of `simulate` gives, before anything is simulated."""

import argparse
import math

from benchmarks.core.checks import allow, first_twice, integer, is_number
from benchmarks.simulation.cluster import MOST_RANKS, Cluster
from benchmarks.simulation.grid import HIERARCHIES
from benchmarks.simulation.read_cluster import find_cluster
from resireduce.errors import ConfigError, check_share, choose
from resireduce.merging import RULES
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES

LONGEST_SECONDS = 1e6
"""The most seconds that the passes of one rank may be said to take: sums over messages of longer ones overflow."""


def checked(args: argparse.Namespace) -> list[Cluster]:
    """Return the clusters that the command line names. Raises ConfigError for the first invalid value."""
    clusters = [find_cluster(one) for one in args.cluster]
    if twice := first_twice(cluster.name for cluster in clusters):
        raise ConfigError(f"cluster: {twice!r} is there twice; give each once, and files other names")
    if (args.record or args.compute_seconds is not None) and len({cluster.device for cluster in clusters}) > 1:
        raise ConfigError("cluster: a measured time is of one device; give clusters of the same")
    for name in ("ranks", "densities", "batch"):
        given = getattr(args, name)
        for one in given if isinstance(given, list | tuple) else [] if given is None else [given]:
            check_share(name, one) if name == "densities" else integer(name, one, 1, 10**6)
    for cluster in clusters:
        for count in args.ranks or [cluster.ranks]:
            integer("ranks", cluster.check_ranks(count), 2, MOST_RANKS)
    for name, known in (("rules", RULES), ("levels", HIERARCHIES), ("compressors", COMPRESSORS), ("schemes", SCHEMES)):
        for one in getattr(args, name):
            choose(name, one, known)
    choose("gradients", args.gradients, GRADIENTS)
    integer("top", args.top, 1, 10**6)
    for name, least in (("ragged_largest", 1.0), ("most_lost", 0.0)):
        value = getattr(args, name)
        allow(name, value, is_number(value) and least <= value < math.inf, f"a number, {least:g} or more")
    _check_seconds(args)
    if args.output and args.output.exists() and not args.output.is_dir():
        raise ConfigError(f"output: {args.output} is no folder; give the name of one")
    return clusters


def _check_seconds(args: argparse.Namespace) -> None:
    """Raise ConfigError for the seconds of passes, if they are given twice or cannot be used."""
    if args.record and args.compute_seconds is not None:
        raise ConfigError("compute_seconds: the record says it, too; give one of them")
    if args.compute_seconds is not None:
        fits = 0 < args.compute_seconds <= LONGEST_SECONDS
        longest = f"seconds, more than 0, at most {LONGEST_SECONDS:g}"
        allow("compute_seconds", args.compute_seconds, fits, longest)
