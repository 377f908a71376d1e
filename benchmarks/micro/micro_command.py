"""`python -m benchmarks measure micro`: times gradient compression beside plain torch and a copy. Imports no torch."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.analysis.tables.compression import ALIGN, HEAD, cells_of
from benchmarks.core.checks import integer
from benchmarks.core.devices import DEVICES
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import cores, timing_provenance
from benchmarks.launching.processes import MALLOC_THAT_KEEPS, measure
from resireduce.errors import ConfigError, check_share, choose

SIZES, DENSITIES, ROUNDS = (1 << 16, 1 << 20, 25 << 20), (0.01, 0.001), 9
SMALLEST, LARGEST, ROW, MOST_THREADS = 1 << 14, 1 << 30, 1024, 1024
COPY, NAIVE = "copy", "naive"
PASSES = 1.5
"""Bytes to read the gradient and read and write the residual, relative to a copy, which reads and writes."""
READING = (
    "ms: the least of {rounds} rounds in which all cases ran in turn, of one gradient, {threads}. Naive: the sum, "
    "torch.topk(x.abs(), k, sorted=False), the values and zeros in their places. Bound: the time to read the gradient "
    "and to read and write the residual at the speed of a copy in the same rounds."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    sizes, shares = (", ".join(map(str, given)) for given in (SIZES, DENSITIES))
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help=f"elements of a gradient (default: {sizes})")
    parser.add_argument("--densities", type=float, nargs="+", metavar="D", help=f"shares sent (default: {shares})")
    text = "names of cases, or patterns such as 'topk, *'; a copy and the naive form are always there (default: all)"
    parser.add_argument("--cases", nargs="+", metavar="NAME", default=["*"], help=text)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is timed (default: %(default)s)")
    text = "threads of each case, plain torch's too (default: the cores that this process may use, as torch has them)"
    parser.add_argument("--threads", type=int, metavar="N", help=text)
    parser.add_argument("--device", default="cpu", help=f"{' or '.join(DEVICES)} (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="the smallest size in two rounds at most, to try it out")
    place = Path("results/runs/micro/micro.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Time all cases, write and print their table, and return 0. Raises ConfigError for unusable input."""
    sizes = [_size(size) for size in args.sizes or SIZES]
    densities = [check_share("densities", density) for density in args.densities or DENSITIES]
    rounds = integer("rounds", args.rounds, 1, 10**4)
    settings: dict[str, Any] = {
        "sizes": sizes[:1] if args.tiny else sizes,
        "densities": densities[:1] if args.tiny else densities,
        "rounds": min(rounds, 2) if args.tiny else rounds,
        "device": choose("device", args.device, DEVICES),
        "row": ROW,
        "cases": args.cases,
        "threads": integer("threads", cores() if args.threads is None else args.threads, 1, MOST_THREADS),
    }
    writable("output", args.output)
    cure = "where memory ran out, give fewer cases, such as --cases 'topk, *', or smaller --sizes"
    variables = {**MALLOC_THAT_KEEPS, "OMP_NUM_THREADS": str(settings["threads"])}
    (times,) = measure("micro", settings, cure=cure, variables=variables)
    rows = compared(times)
    save_json(settings | {"malloc": MALLOC_THAT_KEEPS, "rows": rows, "measured": timing_provenance()}, args.output)
    print(f"{table(rows, settings['rounds'], settings['threads'])}\nAll of it: {args.output}")
    return 0


def _size(given: int) -> int:
    """Return the given number of elements if it makes whole rows. Raises ConfigError otherwise."""
    if integer("sizes", given, SMALLEST, LARGEST) % ROW:
        raise ConfigError(f"sizes: {given} is not allowed; give a multiple of {ROW}, the length of a gradient's rows")
    return given


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their least seconds, and the times of the naive form and the bound relative to these."""
    least = {(row["elements"], row["density"], row["case"]): min(row["seconds"]) for row in rows}
    found = []
    for row in rows:
        place = row["elements"], row["density"]
        own, naive, copy = (least[*place, case] for case in (row["case"], NAIVE, COPY))
        found.append({**row, "least_seconds": own, "naive_ratio": naive / own, "bound_ratio": PASSES * copy / own})
    return found


def table(rows: Sequence[dict[str, Any]], rounds: int, threads: int) -> str:
    """Return the rows as a Markdown table, with an explanation that includes the rounds and the number of threads."""
    named = "1 thread" if threads == 1 else f"{threads} threads"
    head = [f"ms, {named}" if title == "ms" else title for title in HEAD]
    reading = READING.format(rounds=rounds, threads=named)
    return f"{markdown_table(head, list(map(cells_of, rows)), ALIGN)}\n\n{reading}\n"


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m benchmarks.micro.micro_command")
    add_arguments(options)
    sys.exit(main(options.parse_args()))
