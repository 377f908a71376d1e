"""The command line of the one-GPU check. Imports no torch."""

import argparse
from pathlib import Path

from benchmarks.checks import integer
from benchmarks.files import writable
from benchmarks.gpucheck.cases import LIMIT_SECONDS, MODELS, STEPS, Case, estimate, list_cases, parts
from benchmarks.gpucheck.device import find_device
from benchmarks.gpucheck.part import Part
from benchmarks.gpucheck.summary import summarise
from benchmarks.training.devices import DEVICES
from benchmarks.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose

OUTPUT = Path("results/runs/gpu-check")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--part", metavar="K", help=f"which part to run; each takes less than {LIMIT_SECONDS} s")
    parser.add_argument("--output", metavar="DIR", type=Path, default=OUTPUT, help="default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="list the cases of all parts, or of one, and stop")
    parser.add_argument("--summary", metavar="DIR", type=Path, help="merge the parts in a folder into one table")
    parser.add_argument("--models", metavar="NAME", nargs="+", default=MODELS, help="default: the paper's six")
    parser.add_argument("--steps", metavar="N", default=STEPS, help="of each case (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help=f"{' or '.join(DEVICES)} (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Run a part, list them, or merge what they left. 0, also if cases failed: that is in the file."""
    if args.summary is not None:
        print(summarise(args.summary), end="")
        return 0
    for model in args.models:
        choose("models", model, WORKLOADS)
    every = parts(list_cases(args.models, _whole("steps", args.steps, 10**6)))
    number = None if args.part is None else _whole("part", args.part, len(every))
    if args.dry_run:
        print("\n".join(table(every, number)))
        return 0
    if number is None:
        raise ConfigError(f"part: missing; give --part 1 to --part {len(every)}, or --dry-run to see them")
    choose("device", args.device, DEVICES)
    path = args.output / f"gpu-check-{number}.json"
    writable("output", path)
    part = Part(number, len(every), every[number - 1], path, find_device(args.device), say=_say)
    part.run()
    _say(f"{path}: {len(part.records)} of {len(part.cases)} cases, {part.seconds:.0f} s")
    return 0


def table(every: list[list[Case]], only: int | None) -> list[str]:
    """Return the lines of a listing: the cases of each part and how long they might take."""
    widths = (14, 10, 8, 9, 8, 7, 5, 5)
    head = ("model", "compressor", "scheme", "gradients", "dtype", "density", "ranks", "steps")
    lines = []
    for number, cases in enumerate(every, start=1):
        if only not in (None, number):
            continue
        lines += ["", f"part {number} of {len(every)}: {len(cases)} cases, {estimate(cases):.0f} s (an estimate)"]
        for row, last in [(head, "s (estimate)"), *((_texts(case), f"{case.estimated_seconds:.0f}") for case in cases)]:
            lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + f"  {last}")
    return lines[1:]


def _texts(case: Case) -> tuple[str, ...]:
    cell = case.cell
    dtype = cell.residual_dtype or "float32"
    values = (cell.model, cell.compressor, cell.scheme, cell.gradients, "-" if cell.compressor == "none" else dtype)
    return (*values, f"{cell.density:g}", str(cell.world_size), str(cell.steps))


def _whole(field: str, text: str | int, most: int) -> int:
    """The whole number that a text means; `integer` refuses any other."""
    return integer(field, int(text) if str(text).isdecimal() else text, 1, most)


def _say(text: str) -> None:
    print(text, flush=True)
