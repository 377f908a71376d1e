"""Runs `plan` for a cell; `python -m benchmarks measure saved-states` plans the paper's Fig. 9, also by nodes."""

import argparse
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from benchmarks.core import scheme_options
from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json, writable
from benchmarks.core.registry import MODELS
from benchmarks.training.optimizers import make_optimizer
from resireduce.merging.rules import TIMED
from resireduce.plan import plan
from resireduce.scheme import load


def plan_of(cell: Cell) -> dict[str, int | float]:
    """Return the result of `plan` for a cell, with its recipe's own optimizer.

    The optimizers that `plan` knows have a step counter for each parameter, which not all have, and temporaries, which
    fused forms have not. The largest models take a few seconds.
    """

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        return make_optimizer(cell.workload, nn.ParameterList(parameters))

    on_each = cell.ranks_per_node or cell.world_size // (cell.nodes or 1)
    found = plan(
        load(MODELS[cell.model]),
        optimizer=make,
        scheme=cell.scheme,
        gradients=cell.gradients,
        residual_dtype=cell.residual_dtype,
        compressor=cell.compressor,
        density=cell.density,
        world_size=cell.world_size,
        update=cell.update,
        hierarchy=cell.hierarchy,
        ranks_per_node=on_each if cell.hierarchy == "node" else None,
        merge="none" if cell.merge in TIMED else scheme_options.thaw_merge(cell.merge),  # not merged before being timed
    )
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


OF_FIGURE = ("resnet50", "vgg19", "bert-base", "bert-large", "gpt2-medium", "gpt2-large")
RANKS, RANKS_PER_NODE = 64, 8
NODE = {"hierarchy": "node", "ranks_per_node": RANKS_PER_NODE}
WAYS: dict[str, dict[str, Any]] = {
    "w": {"scheme": "w"},
    "2d": {"scheme": "2d"},
    "w+2d": {"scheme": "w+2d"},
    "baseline by nodes": {"scheme": "baseline", **NODE},
    "w+2d by nodes": {"scheme": "w+2d", **NODE},
}
"""What is planned for each model, by its heading: the schemes of the figure, and two levels of 8 nodes of 8 ranks."""


def saved(model: str) -> dict[str, float]:
    """Return, by the name of each of WAYS, the share of the paper's baseline model states that is saved.

    It is planned for kept gradients, top-k at density 0.01, the recipe's own optimizer, and the rank that holds most.
    """
    cells = {name: Cell(model=model, world_size=RANKS, **way) for name, way in WAYS.items()}
    return {name: 1 - plan_of(cell)["normalised"] for name, cell in cells.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--output", type=Path, required=True, help="JSON file")


def main(args: argparse.Namespace) -> int:
    """Plan all models, print what is saved, and write it. Raises ConfigError if the output cannot be written."""
    writable("output", args.output)
    rows = []
    for model in OF_FIGURE:
        shares = saved(model)
        rows.append({"model": model, "saved": shares})
        print(f"{model}: {', '.join(f'{way} {share:.1%}' for way, share in shares.items())}", flush=True)
    save_json({"ranks": RANKS, "ranks_per_node": RANKS_PER_NODE, "rows": rows}, args.output)
    return 0
