"""Times several forms of a cell round by round, in the same processes: on this machine, or on nodes within it."""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_json
from benchmarks.core.workloads import WORKLOADS
from benchmarks.launching.processes import RankProcess, only_with_parent
from benchmarks.launching.ranks import rank_variables
from resireduce.errors import ConfigError
from resireduce.settings import dear_bytes

HERE: Sequence[Sequence[str]] = ([],)
"""The one node that is this machine."""


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
    flat_alone = [dear_bytes(form.get("merge")) is not None for form in forms]
    each = [
        form | level for form, alone in zip(forms, flat_alone, strict=True) for level in levels[: 1 if alone else 2]
    ]
    return [Cell(model=model, world_size=nodes * ranks_per_node, data=data, **form) for form in each]


def train_on(
    nodes: Sequence[Sequence[str]], cells: Sequence[Cell], rounds: int, steps: int, *words: str, **variables: str
) -> Trained:
    """Train `cells` of one model in turn, for `rounds` rounds of `steps` steps each, on ranks that fill the nodes.

    Args:
        nodes: for each, the beginning of a command line that runs there; HERE for this machine itself.
        words: further ones for `benchmarks.training.pace_rank`; with "inputs" the inputs of a simulated step are
            measured before each round.
        variables: further ones of each rank's environment.

    Raises ConfigError if ranks fail.
    """
    with tempfile.TemporaryDirectory(prefix="resireduce-in-turn-") as name, ExitStack() as stack:
        folder, size = Path(name), cells[0].world_size
        save_json([cell.to_dict() for cell in cells], folder / "cells.json")
        line = [sys.executable, "-m", "benchmarks.training.pace_rank", name, str(rounds), str(steps), *words]
        ranks = []
        for rank in range(size):
            environment = os.environ | rank_variables(cells[0], rank) | variables
            command = [*nodes[rank * len(nodes) // size], *line]
            ranks.append(stack.enter_context(RankProcess(command, env=environment, preexec_fn=only_with_parent)))
            stack.callback(ranks[-1].kill)
        if {rank.wait() for rank in ranks} != {0}:
            raise ConfigError(f"{cells[0].name}: could not be timed; its ranks say above why")
        inputs = [load_json(folder / f"inputs{rank}.json") for rank in range(size)] if "inputs" in words else []
        return Trained(load_json(folder / "seconds.json"), load_json(folder / "merged.json"), inputs)
