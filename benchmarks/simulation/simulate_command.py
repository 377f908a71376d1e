"""`python -m benchmarks simulate`: how long a step of each combination would take on a described cluster."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import TIMES
from benchmarks.analysis.table import Table, to_markdown, to_screen
from benchmarks.core.checks import allow, first_twice, integer
from benchmarks.core.files import finite, load_json
from benchmarks.simulation.beside import measured_table, published_table, sentence, shares
from benchmarks.simulation.cluster import MOST_RANKS, Cluster, find_cluster
from benchmarks.simulation.results import (
    PLANNERS,
    Result,
    Settings,
    compressor_of,
    fastest_dense,
    fastest_first,
    simulate,
)
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.what_pays import answers, sentences
from benchmarks.simulation.wire import HIERARCHIES, grid, layers_of, read_micro
from resireduce.errors import ConfigError, check_share, choose
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES

LONGEST_SECONDS = 1e6
"""The most seconds that the passes of one rank may be said to take: sums over messages of longer ones overflow."""


def checked(args: argparse.Namespace) -> list[Cluster]:
    """Return the clusters that the command line names. Raises ConfigError for the first invalid value."""
    clusters = [find_cluster(one) for one in args.cluster]
    if twice := first_twice(cluster.name for cluster in clusters):
        raise ConfigError(f"cluster: {twice!r} is there twice; give each once, and files other names")
    if args.compute_seconds is not None:
        fits = 0 < args.compute_seconds <= LONGEST_SECONDS
        allow("compute_seconds", args.compute_seconds, fits, f"seconds, more than 0, at most {LONGEST_SECONDS:g}")
        if len({cluster.device for cluster in clusters}) > 1:
            raise ConfigError("cluster: a measured time is of one device; give clusters of the same")
    if args.batch is not None:
        integer("batch", args.batch, 1, 10**6)
    for density in args.densities:
        check_share("densities", density)
    for cluster in clusters:
        for count in args.ranks or [cluster.ranks]:
            integer("ranks", cluster.check_ranks(count), 2, MOST_RANKS)
    known = {"rules": RULES | PLANNERS, "levels": HIERARCHIES, "compressors": COMPRESSORS, "schemes": SCHEMES}
    for name, names in known.items():
        for one in getattr(args, name):
            choose(name, one, names)
    choose("gradients", args.gradients, GRADIENTS)
    return clusters


DENSITIES = (0.01, 0.001)
UNPLANNED = ("threshold",)
"""Compressors whose message sizes are unknown before they see gradients."""
SHOWN = 20
"""Rows that are printed, each with its best merging."""
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
    parser.add_argument("--compute-seconds", type=float, help="seconds of a rank's forward and backward pass")
    parser.add_argument("--gradients", default="streamed", help="kept, streamed: what must fit (default: %(default)s)")
    parser.add_argument("--published", action="store_true", help="instead: speeds of papers, beside simulated ones")
    text = "instead: the steps in a record of a testbed, beside simulated ones"
    parser.add_argument("--measured", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, all results")


def main(args: argparse.Namespace) -> int:
    """Simulate, print the results, and return 0. Raises ConfigError, with one line, for invalid input."""
    if args.published:
        found = published_table()
        return _printed(args, {"simulated": True, "beside_published": found.records}, to_markdown(found, []))
    if args.measured:
        found = measured_table(args.measured)
        counted = shares(found.records)
        plain = {"beside_measured": found.records, "shares": counted}
        return _printed(args, plain, f"{to_markdown(found, [])}\n{sentence(counted)}")
    names = ("compressors", "densities", "rules", "levels", "schemes")
    axes = [list(dict.fromkeys(getattr(args, name))) for name in names]
    cases = list(grid(checked(args), list(dict.fromkeys(args.ranks or ())) or None, *axes))
    if not cases:
        raise ConfigError(
            f"rules: nothing is left to simulate; dear needs compressor none and flat levels, and {ALONE}"
        )
    rows = read_micro(args.micro) if args.micro else []
    settings = Settings(layers_of(args.model, args.batch), rows, args.compute_seconds)
    results = simulate(cases, settings)
    ordered = fastest_first(results)
    said = answers(results, settings, args.gradients)
    text = to_screen(table(best_merged(ordered)[:SHOWN], results)) + "\n\n" + "\n".join(sentences(said))
    if args.micro:
        text += f"\nCompression was measured on a {load_json(args.micro).get('device', 'device')}: {args.micro}."
    return _printed(args, said | {"results": [one.as_dict() for one in ordered]}, text)


def _printed(args: argparse.Namespace, plain: dict[str, Any], text: str) -> int:
    print(json.dumps(finite(plain), indent=1) if args.json else text)
    return 0


# --- The table ---

READING = (
    "Simulated, not measured: a step from the start of one forward pass to that of the next. Exposed: what of it is "
    "neither forward, backward pass nor update. Speed-up: beside the fastest without compression on as many ranks of "
    "the same cluster. Compression: as make micro measured it, or by the bytes of memory that it moves, which is the "
    "least that it can take."
)
HEAD = ["Cluster", "Compressor", "Merged", "Levels", "Ranks", "Step, ms", "Exposed, ms", "Speed-up", "Messages"]
HEAD += ["Sent, MiB", "Compression"]


def table(results: Sequence[Result], all_results: Sequence[Result]) -> Table:
    """Return the table of `results`, compared with those without compression in `all_results`."""
    dense = fastest_dense(all_results)
    body = [_texts(one, dense.get((one.case.cluster.name, one.case.ranks))) for one in results]
    records = [one.as_dict() for one in results]
    return Table("simulated", "Simulated steps", READING, records, HEAD, body, text_columns=4)


def best_merged(ordered: Sequence[Result]) -> list[Result]:
    """Return the first of the `ordered` results for each cluster, ranks, compressor, density, scheme and levels, and
    for each planner."""
    found: dict[tuple[Any, ...], Result] = {}
    for one in ordered:
        case = one.case
        planner = None if case.rule in RULES else case.rule
        key = (case.cluster.name, case.ranks, compressor_of(case), case.hierarchy, planner)
        found.setdefault(key, one)
    return list(found.values())


def _texts(one: Result, dense: float | None) -> list[str]:
    case, faster = one.case, "" if dense is None else f"{dense / one.step_seconds:.2f} {TIMES}"
    times = [f"{1000 * seconds:.2f}" for seconds in (one.step_seconds, one.exposed_seconds)]
    place = [case.cluster.name, compressor_of(case), case.rule, case.hierarchy, str(case.ranks)]
    return [*place, *times, faster, str(one.messages), f"{one.sent_bytes / 2**20:.2f}", one.basis]
