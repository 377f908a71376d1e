"""`python -m benchmarks measure pace`: compares the speeds of cells, round by round. Imports no torch.

All train in the same processes, in turn, so other work on the machine affects all alike.
"""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.analysis.statistics import interval
from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer
from benchmarks.core.devices import DEVICE_VARIABLE, DEVICES
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import timing_provenance
from benchmarks.core.workloads import SMALL, WORKLOADS
from benchmarks.launching.processes import HERE, MALLOC_THAT_KEEPS, measure
from resireduce.errors import ConfigError, choose

# --- Several forms of a cell, timed in the same processes: on this machine, or on nodes within it ---


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

    `nodes` has for each the beginning of a command line that runs there; HERE is this machine itself. `inputs`: measure
    those of a simulated step before each round. `variables` are further ones of each rank's environment. Returns what
    each rank has found; see `benchmarks.training.pace_rank`. Raises ConfigError if ranks fail.
    """
    settings = {"cells": [cell.to_dict() for cell in cells], "rounds": rounds, "steps": steps, "inputs": inputs}
    own = {"OMP_NUM_THREADS": str(cells[0].threads), **(variables or {})}
    return measure("pace", settings, cells[0].world_size, nodes, variables=own)


# --- Pairs of cells ---

BASELINE, SHARED = {"scheme": "baseline", "gradients": "kept"}, {"scheme": "w+2d", "gradients": "kept"}
STREAMED = {"gradients": "streamed"}
PAIRS: dict[str, list[list[dict[str, Any]]]] = {
    "each": [[BASELINE, BASELINE | STREAMED], [SHARED, SHARED | STREAMED]],
    "every": [[BASELINE, BASELINE | STREAMED, SHARED, {"compressor": "none", "scheme": "none", "gradients": "kept"}]],
}
"""Groups of settings that are timed in the same processes: all others are compared with the first."""
NAMES = ("compressor", "density", "scheme", "gradients", "residual_dtype")
"""Fields of a cell that a row has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_timing(parser, 20, 10, "results/runs/pace.json")
    text = "how often processes are started anew for it: where memory comes to lie differs between them by a percent; "
    text += "of two or more, the interval is over their means (default: %(default)s)"
    parser.add_argument("--starts", type=int, default=1, help=text)
    parser.add_argument("--models", metavar="NAME", nargs="+", help="default: the small ones")
    text = "what is compared: each (streaming, of each scheme; default), or every: streaming, sharing and no "
    text += "compression against the baseline"
    parser.add_argument("--pairs", default="each", help=text)
    text = "in place of --pairs: each setting of a config's cells against its cell without compression"
    parser.add_argument("--config", metavar="FILE", type=Path, help=text)
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help=f"{' or '.join(DEVICES)} (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Write the ratios after each model, print them, and return 0. Raises ConfigError for unusable input."""
    (rounds, steps), starts = rounds_and_steps(args), integer("starts", args.starts, 1, 100)
    ranks = integer("ranks", args.ranks, 1, 128)
    place: dict[str, Any] = {"world_size": ranks, "backend": "local" if ranks == 1 else "torch"}
    together: list[list[Cell]] = []
    for name in args.models or [one.model for one in SMALL]:
        model = choose("models", name, WORKLOADS)
        if args.config is None:
            cell = Cell(model=model, data=data_of(model), **place)
            pairs = PAIRS[choose("pairs", args.pairs, PAIRS)]
            together += [[replace(cell, **setting) for setting in several] for several in pairs]
        else:
            together.append(_of_config(args.config, model, place))
    os.environ[DEVICE_VARIABLE] = choose("device", args.device, DEVICES)
    writable("output", args.output)
    asked = {"rounds": rounds, "steps": steps, "starts": starts}
    found: dict[str, Any] = asked | {"rows": [], "measured": timing_provenance() | {"device": args.device}}
    for cells in together:
        for cell, row in zip(cells[1:], compare(cells, rounds, steps, starts), strict=True):
            found["rows"].append(row)
            print(f"{cell.name} / {cells[0].name}: {row['ratio']:.3f} ± {row['half_width']:.3f}", flush=True)
        save_json(found, args.output)
    over = f"{rounds} rounds" if starts == 1 else f"{starts} starts of {rounds} rounds"
    print(f"Speed of the first, of the other's, ± half of the 95 % interval over {over}: {args.output}")
    return 0


def _of_config(config: Path, model: str, place: dict[str, Any]) -> list[Cell]:
    """Return a model's settings in the config, regardless of seeds; the first is the one without compression."""
    settings = cells_of_configs([config], model, **place)
    first = [one for one in settings if one.compressor == "none"]
    if len(first) != 1 or len(settings) < 2:
        raise ConfigError(
            f"config: {str(config)!r} has {len(settings)} settings of {model}, {len(first)} of them without "
            "compression; give one of these, and others to compare with it, or other --models"
        )
    return [*first, *(one for one in settings if one not in first)]


def compare(cells: Sequence[Cell], rounds: int, steps: int, starts: int = 1) -> list[dict[str, Any]]:
    """Return the ratio of the speed of each further cell to that of the first; all are of one model.

    A row has the ratios of all rounds, or of several `starts` of the processes their means, the mean of these, half its
    95 % interval, and the least seconds of a step in both.
    """
    timed = [train_on(HERE, cells, rounds, steps, variables=MALLOC_THAT_KEEPS)[0]["seconds"] for _ in range(starts)]
    settings = [
        {name: getattr(cell, name) for name in NAMES} | {"step_seconds": min(min(one[number]) for one in timed) / steps}
        for number, cell in enumerate(cells)
    ]
    rows = []
    for number, setting in enumerate(settings[1:], 1):
        ratios = [[a / b for a, b in zip(one[0], one[number], strict=True)] for one in timed]
        paired = ratios[0] if starts == 1 else [fmean(one) for one in ratios]
        found = interval(paired)
        assert found is not None
        row = {"model": cells[0].model, **setting, "against": settings[0], "ratios": paired}
        rows.append(row | {"pairs": found.n, "ratio": found.mean, "half_width": found.half_width})
    return rows
