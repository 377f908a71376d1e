"""`python -m benchmarks measure links`: times steps of a few nodes with slow links, in every form, round by round.

All forms train in the same processes, in turn, so other work on the machine affects all alike. Imports no torch.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.statistics import median_interval
from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer
from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import timing_provenance
from benchmarks.core.workloads import WORKLOADS
from benchmarks.micro.slow_nodes import INTERFACE, slow_nodes
from benchmarks.micro.train_on_nodes import make_cells, train_on
from resireduce.errors import choose
from resireduce.scheme import MERGES

NODES, RANKS_PER_NODE, MOST_RANKS = 2, 2, 64
SIZE_BYTES = 1 << 15
"""Bytes of a fixed-size message: about a third of what a rank sends for the small models at density 0.01."""
TOPK = {"compressor": "topk", "scheme": "baseline", "density": 0.01}
FORMS: tuple[dict[str, Any], ...] = (
    {"compressor": "none", "scheme": "none"},
    {"compressor": "fp16", "scheme": "none"},
    {**TOPK, "density": 0.001},
    *({**TOPK, "merge": merge} for merge in (MERGES[0], MERGES[1], SIZE_BYTES, *MERGES[2:]) if merge != "dear"),
    *({"compressor": "none", "scheme": "none", "merge": merge} for merge in ("dear", f"dear-{1 << 19}")),
)
"""Forms that are timed, flat and, where possible, by nodes; DeAR with one message (of small models) and several."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = "how often each form is timed, in turn with the others (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=20, help=text)
    parser.add_argument("--steps", type=int, default=2, help="training steps of a round (default: %(default)s)")
    parser.add_argument("--model", default="gpt2-bytes", help="one of the suite's (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=NODES, help="how many (default: %(default)s)")
    parser.add_argument("--ranks-per-node", type=int, default=RANKS_PER_NODE, help="each (default: %(default)s)")
    parser.add_argument(
        "--rate", default="100mbit", help="of a node's link, each way, or unslowed (default: %(default)s)"
    )
    place = Path("results/runs/links.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Write the seconds of all forms, print their medians, and return 0. Raises ConfigError for unusable input."""
    rounds, steps = integer("rounds", args.rounds, 2, 10**4), integer("steps", args.steps, 1, 10**4)
    nodes = integer("nodes", args.nodes, 2, MOST_RANKS)
    ranks_per_node = integer("ranks_per_node", args.ranks_per_node, 1, MOST_RANKS // nodes)
    cells = make_cells(choose("model", args.model, WORKLOADS), FORMS, nodes, ranks_per_node)
    os.environ[DEVICE_VARIABLE] = "cpu"
    writable("output", args.output)
    load = list(os.getloadavg())
    with slow_nodes(args.rate, nodes) as held:
        found = train_on(held, cells, rounds, steps, GLOO_SOCKET_IFNAME=INTERFACE)
    rows = [timed_row(*one, steps) for one in zip(cells, found.seconds, found.merged, strict=True)]
    for row in rows:
        print(f"{_words(row)}: {row['median']:.4f} s ({row['low']:.4f} to {row['high']:.4f})", flush=True)
    setting = {"model": args.model, "nodes": nodes, "ranks_per_node": ranks_per_node, "rate": args.rate}
    setting |= {"rounds": rounds, "steps": steps, "load_before": load}
    save_json({**setting, "rows": rows, "measured": timing_provenance()}, args.output)
    print(f"Medians of a step over {rounds} rounds, and their 95 % intervals: {args.output}")
    return 0


def timed_row(cell: Cell, seconds: Sequence[float], merged: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return a cell's row: its form, its messages, the median seconds of a step, and the seconds of all rounds."""
    each = [one / steps for one in seconds]
    median, low, high = median_interval(each)
    named = {name: getattr(cell, name) for name in ("compressor", "density", "hierarchy", "merge")}
    return {**named, **merged, "median": median, "low": low, "high": high, "step_seconds": each}


def _words(row: dict[str, Any]) -> str:
    density = f" {row['density']}" if row["compressor"] == "topk" else ""
    return f"{row['compressor']}{density}, {row['hierarchy']}, merge {row['merge']} ({row['messages']} messages)"
