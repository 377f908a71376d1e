"""`python -m benchmarks measure pace`: compares the speeds of cells, round by round. Imports no torch.

All train in the same processes, in turn, so other work on the machine affects all alike.
"""

import argparse
import os
from collections.abc import Sequence
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
from benchmarks.launching.processes import HERE, MALLOC_THAT_KEEPS
from benchmarks.micro.train_on_nodes import add_timing, cells_of_configs, data_of, rounds_and_steps, train_on
from resireduce.errors import ConfigError, choose

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
