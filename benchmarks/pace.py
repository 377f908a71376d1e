"""`python -m benchmarks pace`: how fast streamed gradients are beside kept ones, round against round. Imports no torch.

Both optimizers train in the same processes, in turn: what else the machine does meets both alike.
"""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cell import Cell
from benchmarks.checks import integer
from benchmarks.files import load_json, save_json, writable
from benchmarks.measure.provenance import provenance
from benchmarks.report.student import interval
from benchmarks.runtimes.ranks import rank_variables, start_here
from benchmarks.workloads import SMALL
from resireduce.errors import ConfigError

SCHEMES = ("baseline", "w+2d")
FACTS = ("commit", "dirty", "python", "packages", "system", "cpu", "cores", "date")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = "how often each is timed, in turn with the other (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=20, help=text)
    parser.add_argument("--steps", type=int, default=10, help="training steps of a round (default: %(default)s)")
    place = Path("results/reference/pace.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Write the ratios of all small models, print them, and return 0. ConfigError for input that cannot be used."""
    rounds, steps = integer("rounds", args.rounds, 2, 10**4), integer("steps", args.steps, 1, 10**4)
    writable("output", args.output)
    rows = []
    for model in (workload.model for workload in SMALL):
        for scheme in SCHEMES:
            row = compare(Cell(model=model, scheme=scheme), rounds, steps)
            rows.append(row)
            print(f"{model}, {scheme}: {row['ratio']:.3f} ± {row['half_width']:.3f}", flush=True)
    here = provenance()
    measured = {name: here[name] for name in FACTS}
    save_json({"rounds": rounds, "steps": steps, "rows": rows, "measured": measured}, args.output)
    print(f"Streamed gradients' speed, of kept ones', ± half of the 95 % interval over {rounds} rounds: {args.output}")
    return 0


def compare(cell: Cell, rounds: int, steps: int) -> dict[str, Any]:
    """Return the ratio of speeds, streamed to kept, of a cell: of each round, their mean and half its 95 % interval."""
    seconds = _times(cell, rounds, steps)
    ratios = [kept / streamed for kept, streamed in zip(*seconds, strict=True)]
    found = interval(ratios)
    assert found is not None
    least = {"kept_step_seconds": min(seconds[0]) / steps, "streamed_step_seconds": min(seconds[1]) / steps}
    row = {"model": cell.model, "scheme": cell.scheme, "pairs": found.n, "ratio": found.mean}
    return {**row, "half_width": found.half_width, **least, "ratios": ratios}


def _times(cell: Cell, rounds: int, steps: int) -> list[list[float]]:
    """Seconds of each round as rank 0 saw them: with kept gradients, and with streamed ones."""
    with tempfile.TemporaryDirectory(prefix="resireduce-pace-") as name, ExitStack() as stack:
        folder = Path(name)
        save_json(cell.to_dict(), folder / "cell.json")
        line = ["-m", "benchmarks.training.pace", str(folder), str(rounds), str(steps)]
        ranks = [stack.enter_context(start_here(line, rank_variables(cell, rank))) for rank in range(cell.world_size)]
        if {rank.wait() for rank in ranks} != {0}:
            raise ConfigError(f"{cell.name}: could not be timed; its ranks say above why")
        values: list[list[float]] = load_json(folder / "seconds.json")
        return values
