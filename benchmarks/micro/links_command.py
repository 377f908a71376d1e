"""`python -m benchmarks links`: steps of two nodes of two ranks, with a slow link, in every form, round against round.

All forms train in the same processes, in turn: what else the machine does meets all alike. Imports no torch.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.analysis.statistics import median_interval
from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer
from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.files import load_json, save_json, writable
from benchmarks.core.provenance import provenance
from benchmarks.core.workloads import WORKLOADS
from benchmarks.launching.processes import RankProcess, die_with_parent
from benchmarks.launching.ranks import rank_variables
from benchmarks.micro.pace import FACTS
from benchmarks.micro.slow_nodes import INTERFACE, two_nodes
from resireduce.errors import ConfigError, choose
from resireduce.scheme import MERGES

NODES, RANKS_PER_NODE = 2, 2
SIZE_BYTES = 1 << 15
"""Bytes of a message of fixed size: about a third of what a rank sends of the small models at density 0.01."""
TOPK = {"compressor": "topk", "scheme": "baseline", "density": 0.01}
FORMS: tuple[dict[str, Any], ...] = (
    {"compressor": "none", "scheme": "none"},
    {"compressor": "fp16", "scheme": "none"},
    {**TOPK, "density": 0.001},
    *({**TOPK, "merge": merge} for merge in (MERGES[0], MERGES[1], SIZE_BYTES, *MERGES[2:]) if merge != "dear"),
)
"""What is timed, flat and by nodes."""
HALVES: tuple[dict[str, Any], ...] = tuple(
    {"compressor": "none", "scheme": "none", "merge": merge} for merge in ("dear", f"dear-{1 << 19}")
)
"""What is timed flat alone: in one message of the small models, and in some."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = "how often each form is timed, in turn with the others (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=20, help=text)
    parser.add_argument("--steps", type=int, default=2, help="training steps of a round (default: %(default)s)")
    parser.add_argument("--model", default="gpt2-bytes", help="default: %(default)s")
    parser.add_argument("--rate", default="100mbit", help="of the link, each way (default: %(default)s)")
    place = Path("results/runs/links.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Write the seconds of all forms, print their medians, and return 0. ConfigError for input that cannot be used."""
    rounds, steps = integer("rounds", args.rounds, 2, 10**4), integer("steps", args.steps, 1, 10**4)
    cells = make_cells(choose("model", args.model, WORKLOADS))
    os.environ[DEVICE_VARIABLE] = "cpu"
    writable("output", args.output)
    load = list(os.getloadavg())
    with two_nodes(args.rate) as nodes:
        seconds, merged = _times(cells, nodes, rounds, steps)
    rows = [_row(*one, steps) for one in zip(cells, seconds, merged, strict=True)]
    for row in rows:
        print(f"{_words(row)}: {row['median']:.4f} s ({row['low']:.4f} to {row['high']:.4f})", flush=True)
    here = provenance()
    setting = {"model": args.model, "rate": args.rate, "rounds": rounds, "steps": steps, "load_before": load}
    save_json({**setting, "rows": rows, "measured": {name: here[name] for name in FACTS}}, args.output)
    print(f"Medians of a step over {rounds} rounds, and their 95 % intervals: {args.output}")
    return 0


def make_cells(model: str) -> list[Cell]:
    """Return the cells of all forms of a model, flat and, where that is possible, by nodes."""
    data = "synthetic" if WORKLOADS[model].data else "real"
    levels: tuple[dict[str, Any], ...] = ({}, {"hierarchy": "node", "ranks_per_node": RANKS_PER_NODE})
    forms = [*(form | level for form in FORMS for level in levels), *HALVES]
    return [Cell(model=model, world_size=NODES * RANKS_PER_NODE, data=data, **form) for form in forms]


def _row(cell: Cell, seconds: Sequence[float], merged: dict[str, Any], steps: int) -> dict[str, Any]:
    each = [one / steps for one in seconds]
    median, low, high = median_interval(each)
    named = {name: getattr(cell, name) for name in ("compressor", "density", "hierarchy", "merge")}
    return {**named, **merged, "median": median, "low": low, "high": high, "step_seconds": each}


def _words(row: dict[str, Any]) -> str:
    density = f" {row['density']}" if row["compressor"] == "topk" else ""
    return f"{row['compressor']}{density}, {row['hierarchy']}, merge {row['merge']} ({row['messages']} messages)"


def _times(
    cells: Sequence[Cell], nodes: Sequence[list[str]], rounds: int, steps: int
) -> tuple[list[list[float]], list[dict[str, Any]]]:
    """Return seconds of each round of each cell, as rank 0 saw them, and what it knew of its messages."""
    with tempfile.TemporaryDirectory(prefix="resireduce-links-") as name, ExitStack() as stack:
        folder = Path(name)
        save_json([cell.to_dict() for cell in cells], folder / "cells.json")
        line = [sys.executable, "-m", "benchmarks.training.pace_rank", name, str(rounds), str(steps)]
        ranks = []
        for rank in range(cells[0].world_size):
            variables = rank_variables(cells[0], rank) | {"GLOO_SOCKET_IFNAME": INTERFACE}
            command = [*nodes[rank // RANKS_PER_NODE], *line]
            started = RankProcess(command, env=os.environ | variables, preexec_fn=die_with_parent)
            ranks.append(stack.enter_context(started))
        if {rank.wait() for rank in ranks} != {0}:
            raise ConfigError(f"{cells[0].model}: could not be timed; its ranks say above why")
        return load_json(folder / "seconds.json"), load_json(folder / "merged.json")
