"""`python -m benchmarks measure saved-states`: Fig. 9, planned, also where a node's ranks share residuals."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json, writable
from benchmarks.training.plan_of_cell import plan_of

MODELS = ("resnet50", "vgg19", "bert-base", "bert-large", "gpt2-medium", "gpt2-large")
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
    for model in MODELS:
        shares = saved(model)
        rows.append({"model": model, "saved": shares})
        print(f"{model}: {', '.join(f'{way} {share:.1%}' for way, share in shares.items())}", flush=True)
    save_json({"ranks": RANKS, "ranks_per_node": RANKS_PER_NODE, "rows": rows}, args.output)
    return 0
