"""`python -m benchmarks simulate`: how long a step of each combination would take on a described cluster."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.write import to_markdown, to_screen
from benchmarks.core.checks import allow, first_twice, integer, is_number
from benchmarks.core.files import finite, load_json
from benchmarks.core.workloads import WORKLOADS
from benchmarks.simulation.beside_measured import measured_table, read_measured, sentence, shares
from benchmarks.simulation.beside_published import published_table
from benchmarks.simulation.cluster import MOST_RANKS, Cluster, find_cluster
from benchmarks.simulation.model_layers import layers_of, recorded_seconds
from benchmarks.simulation.results import PLANNERS, Result, fastest_first, simulate
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.step_time import Settings
from benchmarks.simulation.views import best_merged, table, write_files
from benchmarks.simulation.what_pays import Key, answers, is_supported, records_in, sentences, supported
from benchmarks.simulation.wire import HIERARCHIES, Case, grid, read_micro
from resireduce.errors import ConfigError, check_share, choose
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
    known = {"rules": RULES | PLANNERS, "levels": HIERARCHIES, "compressors": COMPRESSORS, "schemes": SCHEMES}
    for name, names in known.items():
        for one in getattr(args, name):
            choose(name, one, names)
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


DENSITIES = (0.01, 0.001)
UNPLANNED = ("threshold",)
"""Compressors whose message sizes are unknown before they see gradients."""
SHOWN = 20
_ROUNDS = [name for name, one in COMPRESSORS.items() if one.in_rounds and not one.rounds_merge]
ALONE = f"{', '.join(_ROUNDS)} need rule none, those in two phases none or one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options: what is combined, what passes and compression take, and what is shown where."""
    usual = [name for name in COMPRESSORS if name not in UNPLANNED]
    known = "a preset of benchmarks/simulation/clusters.yaml, or a YAML file of your own"
    shares = f"shares sent (default: {', '.join(map(str, DENSITIES))})"
    parser.add_argument("--model", default="resnet50", help="as resireduce plan knows it (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="samples of a rank (default: the recipe's)")
    parser.add_argument("--cluster", nargs="+", default=["paper-local"], help=f"{known} (default: paper-local)")
    parser.add_argument("--ranks", type=int, nargs="+", help=f"2 to {MOST_RANKS} (default: all of the cluster)")
    parser.add_argument("--compressors", nargs="+", metavar="NAME", default=usual, help="default: all but threshold")
    parser.add_argument("--densities", type=float, nargs="+", metavar="D", default=DENSITIES, help=shares)
    parser.add_argument("--schemes", nargs="+", metavar="NAME", default=["baseline"], help="default: baseline")
    rules = f"default: {', '.join(RULES)}; beside these: the planners {' and '.join(PLANNERS)}"
    parser.add_argument("--rules", nargs="+", metavar="NAME", default=list(RULES), help=rules)
    parser.add_argument("--levels", nargs="+", default=list(HIERARCHIES), help="default: flat and node")
    parser.add_argument("--micro", type=Path, help="record of make micro, for the time of compression on this device")
    parser.add_argument("--record", type=Path, help="record of a cell of the model, for the time of its passes")
    parser.add_argument("--compute-seconds", type=float, help="or: seconds of a rank's forward and backward pass")
    parser.add_argument("--ragged-largest", type=float, default=1.0, help="largest payload / planned one (default: 1)")
    parser.add_argument("--gradients", default="streamed", help="kept, streamed: what must fit (default: %(default)s)")
    parser.add_argument("--records", type=Path, help="a run: only combinations whose accuracy it supports")
    parser.add_argument("--most-lost", type=float, default=0.01, help="by these, a share (default: %(default)s)")
    parser.add_argument(
        "--top", type=int, default=SHOWN, help="rows shown, each with its best merging (default: %(default)s)"
    )
    parser.add_argument("--published", action="store_true", help="instead: speeds of papers, beside simulated ones")
    text = "instead: the steps in a record of a testbed, beside simulated ones"
    parser.add_argument("--measured", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, all results")
    parser.add_argument("--output", type=Path, help="folder for simulated.json, .csv, .md, step.svg and scaling.svg")


def main(args: argparse.Namespace) -> int:
    """Simulate, print the results, and return 0. Raises ConfigError, with one line, for invalid input."""
    if args.published and args.measured:
        raise ConfigError("measured: --measured is not allowed with --published; give one of them")
    if args.published:
        return _beside_published(args)
    if args.measured:
        return _beside_measured(args)
    clusters = checked(args)
    cases = _cases(args, clusters, args.ranks)
    if not cases:
        raise ConfigError(
            f"rules: nothing is left to simulate; dear needs compressor none and flat levels, and {ALONE}"
        )
    keys = None if args.records is None else supported(records_in(args.records), args.model, args.most_lost)
    settings = _settings(args)
    results = simulate(cases, settings)
    chosen = results if keys is None else _with_accuracy(args.records, keys, results)
    ordered = fastest_first(chosen)
    said = answers(chosen, results, settings, args.gradients)
    if args.output:
        write_files(args.output, said, ordered, results, settings, _scaled(args, clusters[0], settings))
    if args.json:
        print(json.dumps(finite(said | {"results": [one.as_dict() for one in ordered]}), indent=1))
        return 0
    print(to_screen(table(best_merged(ordered)[: args.top], results)))
    print("\n" + "\n".join(sentences(said)))
    if args.micro:
        print(f"Compression was measured on a {load_json(args.micro).get('device', 'device')}: {args.micro}.")
    return 0


def _beside_published(args: argparse.Namespace) -> int:
    """Print speeds of papers beside simulated ones, and return 0."""
    found = published_table()
    plain = {"simulated": True, "beside_published": found.records}
    print(json.dumps(finite(plain), indent=1) if args.json else to_markdown(found, []))
    return 0


def _beside_measured(args: argparse.Namespace) -> int:
    """Print a testbed's measurements beside their simulation, and return 0.

    Raises ConfigError for an unreadable record, and for options without meaning here.
    """
    for name in ("output", "record", "records", "micro", "compute_seconds", "batch", "ranks"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"{name}: --{option} is not allowed with --measured, whose record says all; leave it out")
    found = read_measured(args.measured)
    table_of = measured_table(found, layers_of(choose("model", found.get("model"), WORKLOADS)))
    counted = shares(table_of.records)
    plain = {"beside_measured": table_of.records, "shares": counted}
    print(json.dumps(finite(plain), indent=1) if args.json else f"{to_markdown(table_of, [])}\n{sentence(counted)}")
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    """Return the settings shared by all cases, read before anything is simulated."""
    rows = read_micro(args.micro) if args.micro else []
    seconds = recorded_seconds(args.record, args.model, args.batch) if args.record else args.compute_seconds
    return Settings(layers_of(args.model, args.batch), rows, seconds, args.ragged_largest)


def _cases(args: argparse.Namespace, clusters: Sequence[Cluster], ranks: Sequence[int] | None) -> list[Case]:
    def once(given: Sequence[Any]) -> list[Any]:
        return list(dict.fromkeys(given))

    return list(
        grid(
            clusters,
            once(ranks) if ranks else None,
            once(args.compressors),
            once(args.densities),
            once(args.rules),
            once(args.levels),
            once(args.schemes),
        )
    )


def _with_accuracy(records: Path, keys: set[Key], results: list[Result]) -> list[Result]:
    """Return the results whose accuracy the run `records` supports, of the combinations `keys`."""
    found = [one for one in results if is_supported(one, keys)]
    if not found:
        known = "; ".join(f"{name} at {density:g}, {scheme}" for name, density, scheme in sorted(keys))
        raise ConfigError(f"records: {records} supports none of these combinations; it does: {known}")
    return found


def _scaled(args: argparse.Namespace, cluster: Cluster, settings: Settings) -> list[Result]:
    """Return results on 2 to 4,096 ranks of a cluster, for numbers that fill its nodes."""
    in_node = [count for count in _powers() if count <= cluster.ranks_per_node]
    nodes = [cluster.ranks_per_node * count for count in _powers() if cluster.between_nodes]
    ranks = sorted({*in_node, *(count for count in nodes if count <= MOST_RANKS), cluster.ranks})
    return simulate(_cases(args, [cluster], ranks), settings)


def _powers() -> list[int]:
    return [2**power for power in range(1, int(math.log2(MOST_RANKS)) + 1)]
