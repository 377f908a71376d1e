"""`python -m benchmarks measure pace`: compares the speeds of cells, round by round. Imports no torch.

All train in the same processes, in turn, so other work on the machine affects all alike.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.analysis.statistics import interval
from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer
from benchmarks.core.devices import DEVICE_VARIABLE, DEVICES
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import timing_provenance
from benchmarks.core.workloads import SMALL, WORKLOADS
from benchmarks.launching.processes import HERE, MALLOC_THAT_KEEPS
from benchmarks.micro.train_on_nodes import cells_of_configs, train_on
from resireduce.errors import ConfigError, choose


class Setting(NamedTuple):
    """What is set in the cells that are compared; the rest is as a cell has it by default."""

    scheme: str
    gradients: str
    residual_dtype: str | None = None


DENSE = Setting("none", "kept")
"""Without a compressor."""
BASELINE, STREAMED = Setting("baseline", "kept"), Setting("baseline", "streamed")
SHARED, SHARED_STREAMED = Setting("w+2d", "kept"), Setting("w+2d", "streamed")
PAIRS: dict[str, tuple[tuple[Setting, ...], ...]] = {
    "each": ((BASELINE, STREAMED), (SHARED, SHARED_STREAMED)),
    "every": ((BASELINE, STREAMED, SHARED, DENSE),),
}
"""Groups of settings that are timed in the same processes: all others are compared with the first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = "how often each is timed, in turn with the others (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=20, help=text)
    parser.add_argument("--steps", type=int, default=10, help="training steps of a round (default: %(default)s)")
    text = "how often processes are started anew for it: where memory comes to lie differs between them by a percent; "
    text += "of two or more, the interval is over their means (default: %(default)s)"
    parser.add_argument("--starts", type=int, default=1, help=text)
    parser.add_argument("--models", metavar="NAME", nargs="+", help="default: the small ones")
    text = (
        "what is compared: each (streaming, of each scheme; default), or every: streaming, sharing and no compression "
    )
    text += "against the baseline"
    parser.add_argument("--pairs", default="each", help=text)
    text = "in place of --pairs: each setting of a config's cells against its cell without compression"
    parser.add_argument("--config", metavar="FILE", type=Path, help=text)
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help=f"{' or '.join(DEVICES)} (default: %(default)s)")
    place = Path("results/runs/pace.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Write the ratios after each model, print them, and return 0. Raises ConfigError for unusable input."""
    rounds, steps = integer("rounds", args.rounds, 2, 10**4), integer("steps", args.steps, 1, 10**4)
    starts = integer("starts", args.starts, 1, 100)
    integer("ranks", args.ranks, 1, 128)
    models = [choose("models", name, WORKLOADS) for name in args.models or [one.model for one in SMALL]]
    together = _in_pairs(models, args) if args.config is None else _of_config(models, args)
    os.environ[DEVICE_VARIABLE] = choose("device", args.device, DEVICES)
    writable("output", args.output)
    asked = {"rounds": rounds, "steps": steps, "starts": starts}
    found: dict[str, Any] = asked | {"rows": [], "measured": timing_provenance() | {"device": args.device}}
    for cells in together:
        for row in compare(cells, rounds, steps, starts):
            found["rows"].append(row)
            beside = f"{row['model']}: {_words(row)} against {_words(row['against'])}"
            print(f"{beside}: {row['ratio']:.3f} ± {row['half_width']:.3f}", flush=True)
        save_json(found, args.output)
    over = f"{rounds} rounds" if starts == 1 else f"{starts} starts of {rounds} rounds"
    print(f"Speed of the first, of the other's, ± half of the 95 % interval over {over}: {args.output}")
    return 0


def _in_pairs(models: Sequence[str], args: argparse.Namespace) -> list[list[Cell]]:
    """Return the groups of cells that `--pairs` stands for; each is timed together and compared with its first cell."""
    together = PAIRS[choose("pairs", args.pairs, PAIRS)]
    return [[_in_setting(_cell(model, args.ranks), one) for one in several] for model in models for several in together]


def _of_config(models: Sequence[str], args: argparse.Namespace) -> list[list[Cell]]:
    """Return each model's settings in the config, regardless of seeds; the first is the one without compression."""
    together = []
    for model in models:
        place = {"world_size": args.ranks, "backend": _cell(model, args.ranks).backend}
        settings = cells_of_configs([args.config], model, **place)
        first = [one for one in settings if one.compressor == "none"]
        if len(first) != 1 or len(settings) < 2:
            raise ConfigError(
                f"config: {str(args.config)!r} has {len(settings)} settings of {model}, {len(first)} of them without "
                "compression; give one of these, and others to compare with it, or other --models"
            )
        together.append([*first, *(one for one in settings if one not in first)])
    return together


def _cell(model: str, ranks: int) -> Cell:
    data = "synthetic" if WORKLOADS[model].data else "real"
    return Cell(model=model, world_size=ranks, backend="local" if ranks == 1 else "torch", data=data)


def _in_setting(cell: Cell, setting: Setting) -> Cell:
    compressor = "none" if setting == DENSE else cell.compressor
    return replace(cell, compressor=compressor, **setting._asdict())


def _words(row: dict[str, Any]) -> str:
    density = "" if row["density"] == 1 else f" {row['density']:g}"
    few_bits = "" if row["residual_dtype"] is None else f", {row['residual_dtype']}"
    return f"{row['compressor']}{density}, {row['scheme']}, {row['gradients']}{few_bits}"


def compare(cells: Sequence[Cell], rounds: int, steps: int, starts: int = 1) -> list[dict[str, Any]]:
    """Return the ratio of the speed of each further cell to that of the first; all are of one model.

    A row has the ratios of all rounds, or of several `starts` of the processes their means, the mean of these, half its
    95 % interval, and the least seconds of a step in both.
    """
    timed = [train_on(HERE, cells, rounds, steps, variables=MALLOC_THAT_KEEPS).seconds for _ in range(starts)]
    reference = _setting_of(cells[0]) | {"step_seconds": min(min(one[0]) for one in timed) / steps}
    rows = []
    for number, cell in enumerate(cells[1:], 1):
        ratios = [[a / b for a, b in zip(one[0], one[number], strict=True)] for one in timed]
        paired = ratios[0] if starts == 1 else [fmean(one) for one in ratios]
        found = interval(paired)
        assert found is not None
        row: dict[str, Any] = {"model": cell.model, **_setting_of(cell), "against": reference}
        row |= {"pairs": found.n, "ratio": found.mean, "half_width": found.half_width}
        rows.append({**row, "step_seconds": min(min(one[number]) for one in timed) / steps, "ratios": paired})
    return rows


def _setting_of(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in ("compressor", "density", *Setting._fields)}
