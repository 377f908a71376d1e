"""Times several forms of a cell round by round, in the same processes: on this machine, or on nodes within it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.workloads import WORKLOADS
from benchmarks.launching.processes import measure


@dataclass(frozen=True)
class Trained:
    """The measurements of the ranks."""

    seconds: list[list[float]]
    """Seconds of each round of each cell, as measured by rank 0."""
    merged: list[dict[str, Any]]
    """Rank 0's facts about the messages of each cell."""
    inputs: list[list[dict[str, Any]]]
    """For each rank, its measured inputs of a simulated step in each round; empty if these were not requested."""


def make_cells(model: str, forms: Sequence[dict[str, Any]], nodes: int = 2, ranks_per_node: int = 2) -> list[Cell]:
    """Return the cells of all `forms` of a model: flat and, if allowed and if nodes have several ranks, by node."""
    data = "synthetic" if WORKLOADS[model].data else "real"
    by_node = {"hierarchy": "node", "ranks_per_node": ranks_per_node}
    levels: list[dict[str, Any]] = [{}, by_node] if ranks_per_node > 1 else [{}]
    each = [form | level for form in forms for level in levels]
    return [Cell(model=model, world_size=nodes * ranks_per_node, data=data, **form) for form in each]


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
) -> Trained:
    """Train `cells` of one model in turn, for `rounds` rounds of `steps` steps each, on ranks that fill the nodes.

    Args:
        nodes: for each, the beginning of a command line that runs there; HERE for this machine itself.
        inputs: measure the inputs of a simulated step before each round.
        variables: further ones of each rank's environment.

    Raises ConfigError if ranks fail.
    """
    settings = {"cells": [cell.to_dict() for cell in cells], "rounds": rounds, "steps": steps, "inputs": inputs}
    own = {"OMP_NUM_THREADS": str(cells[0].threads), **(variables or {})}
    found = measure("pace", settings, cells[0].world_size, nodes, variables=own)
    return Trained(found[0]["seconds"], found[0]["merged"], [rank["inputs"] for rank in found] if inputs else [])
