"""Times several forms of a cell round by round, in the same processes: on this machine, or on nodes within it."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer
from benchmarks.core.workloads import WORKLOADS
from benchmarks.launching.processes import measure


def add_timing(parser: argparse.ArgumentParser, rounds: int, steps: int, output: str) -> None:
    """Declare the options of all commands that time cells in turn, with their defaults."""
    text = "how often each is timed, in turn with the others (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=rounds, help=text)
    parser.add_argument("--steps", type=int, default=steps, help="training steps of a round (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(output), help="JSON file (default: %(default)s)")


def rounds_and_steps(args: argparse.Namespace) -> tuple[int, int]:
    """Return the given numbers of rounds and steps. Raises ConfigError for one that is not allowed."""
    return integer("rounds", args.rounds, 2, 10**4), integer("steps", args.steps, 1, 10**4)


def make_cells(model: str, forms: Sequence[dict[str, Any]], nodes: int = 2, ranks_per_node: int = 2) -> list[Cell]:
    """Return the cells of all `forms` of a model: flat and, if allowed and if nodes have several ranks, by node."""
    by_node = {"hierarchy": "node", "ranks_per_node": ranks_per_node}
    levels: list[dict[str, Any]] = [{}, by_node] if ranks_per_node > 1 else [{}]
    each = [form | level for form in forms for level in levels]
    return [Cell(model=model, world_size=nodes * ranks_per_node, data=data_of(model), **form) for form in each]


def data_of(model: str) -> str:
    """Return the data that a model is timed on: random ones unless its own are always at hand."""
    return "synthetic" if WORKLOADS[model].data else "real"


def cells_of_configs(files: Iterable[Path], model: str, **place: Any) -> list[Cell]:
    """Return a model's settings in configs, each once and regardless of seeds and observations, with fields of `place`.

    Raises ConfigError for a config that cannot be read.
    """
    from benchmarks.core.config_reader import read_config  # a machine set up only for training may have no YAML
    from benchmarks.core.run_config import get_cells

    every = [cell for file in files for cell in get_cells(read_config(file)).values() if cell.model == model]
    return list(dict.fromkeys(replace(cell, seed=0, observe=(), **place) for cell in every))


def train_on(
    nodes: Sequence[Sequence[str]],
    cells: Sequence[Cell],
    rounds: int,
    steps: int,
    inputs: bool = False,
    variables: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Train `cells` of one model in turn, for `rounds` rounds of `steps` steps each, on ranks that fill the nodes.

    Args:
        nodes: for each, the beginning of a command line that runs there; HERE for this machine itself.
        inputs: measure the inputs of a simulated step before each round.
        variables: further ones of each rank's environment.

    Returns what each rank has found; see `benchmarks.training.pace_rank`. Raises ConfigError if ranks fail.
    """
    settings = {"cells": [cell.to_dict() for cell in cells], "rounds": rounds, "steps": steps, "inputs": inputs}
    own = {"OMP_NUM_THREADS": str(cells[0].threads), **(variables or {})}
    return measure("pace", settings, cells[0].world_size, nodes, variables=own)
