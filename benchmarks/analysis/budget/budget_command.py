"""`python -m benchmarks budget`: estimate cells, hours, wall time and disk of a config before anything runs."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.analysis.budget.estimate import Estimate, Recorded, estimate
from benchmarks.analysis.budget.speeds import PLACES, Speed, read_speeds
from benchmarks.analysis.claims.load_claims import load_claims
from benchmarks.analysis.claims.metric_claims import seeds_of
from benchmarks.analysis.grouping import first_of, grouped, starts_of
from benchmarks.analysis.table import Table
from benchmarks.analysis.write import to_screen
from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer, within
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import save_json, writable
from benchmarks.core.matrix import expand_parts
from resireduce.errors import ConfigError

HEAD = ["Part", "Model", "Ranks", "Cells", "Steps", "Hours", "", "Checkpoint, MiB", "Hours are"]
UNKNOWN = "not known"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--config", type=Path, required=True, help="a YAML file, e.g. benchmarks/config/paper.yaml")
    parser.add_argument("--part", help="names of parts, with commas (default: all)")
    places = f"recorded runs (default: {', '.join(PLACES)})"
    parser.add_argument("--records", metavar="DIR", type=Path, nargs="+", help=places)
    parser.add_argument("--device", help="a part of the device's name (default: the one with most records that fit)")
    parser.add_argument("--jobs", type=int, default=1, help="cells that run at once (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="JSON file for the estimate of every cell, with its sources")


def main(args: argparse.Namespace) -> int:
    """Print the estimates by part and model. Raises ConfigError, with one line, for invalid input."""
    integer("jobs", args.jobs, 1, 10**6)
    config = read_config(args.config, args.part)
    with within(args.config):
        parts = expand_parts({key: value for key, value in config.items() if key != "run"})
    places = args.records or sorted(path for pattern in PLACES for path in Path().glob(pattern))
    device, speeds, others = choose_device(parts, read_speeds(places), args.device)
    found = estimates(parts, speeds)
    if args.output:
        writable("output", args.output)
        save_json([asdict(one) | {"cell": one.cell.to_dict(), "part": part} for part, one in found], args.output)
    print(to_screen(budget_table(found, device, bool(speeds and speeds[0].on_gpu))))
    print("\n" + "\n".join(totals([one for _, one in found], args.jobs, speeds)))
    if needed := seeds_line([one.cell for _, one in found]):
        print(needed)
    if sources := sorted({source for _, one in found for source in one.sources}):
        print(f"Recorded in: {', '.join(sources)}")
    if others:
        print(f"There are records of other devices too (--device): {'; '.join(others)}")
    return 0


def choose_device(
    parts: dict[str, list[Cell]], speeds: Sequence[Speed], wanted: str | None
) -> tuple[str, list[Speed], list[str]]:
    """Return the device whose records cover most cells, its records, and the other devices."""
    devices = sorted({speed.device for speed in speeds})
    fitting = [device for device in devices if wanted is None or wanted.lower() in device.lower()]
    if wanted is not None and not fitting:
        raise ConfigError(f"device: {wanted!r} has no records; there are some of: {'; '.join(devices) or 'none'}")

    def known(device: str) -> int:
        here = [speed for speed in speeds if speed.device == device]
        return sum(one.hours is not None for _, one in estimates(parts, here))

    best = max(fitting, key=known, default=UNKNOWN)
    return best, [speed for speed in speeds if speed.device == best], [one for one in devices if one != best]


def estimates(parts: dict[str, list[Cell]], speeds: Sequence[Speed]) -> list[tuple[str, Estimate]]:
    """Return (part, estimate) for each cell once, under the first part that has it."""
    first = first_of((cell, str(part)) for part, cells in parts.items() for cell in cells)
    recorded = Recorded(speeds)
    return [(part, estimate(cell, recorded)) for cell, part in first.items()]


def budget_table(found: Sequence[tuple[str, Estimate]], device: str, on_gpu: bool) -> Table:
    """Return the table with a row for each part, model and number of ranks."""
    rows = grouped(((part, one.cell.model, one.cell.world_size), one) for part, one in found)
    starts = starts_of([part for part, _, _ in rows])
    body = [
        [part if place in starts else "", model, str(ranks), str(len(ones)), *_texts(ones)]
        for place, ((part, model, ranks), ones) in enumerate(rows.items())
    ]
    head = [*HEAD[:6], "GPU hours" if on_gpu else "Core hours", *HEAD[7:]]
    reading = (
        f"On: {device}. Hours: of all cells of a row, one after the other. A cell that several parts have is counted "
        "with the first. ≥: something is left out, as the last column says."
    )
    return Table("budget", "Budget", reading, [], head, body, text_columns=2, group_starts=starts)


def _texts(ones: Sequence[Estimate]) -> list[str]:
    steps = sorted({one.steps for one in ones if one.steps is not None})
    checkpoints = [one.checkpoint_bytes for one in ones if one.checkpoint_bytes is not None]
    return [
        " to ".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1]))) if steps else UNKNOWN,
        _sum([one.hours for one in ones], any(one.at_least for one in ones)),
        _sum([one.processor_hours for one in ones], any(one.at_least for one in ones)),
        f"{max(checkpoints) / 2**20:,.0f}" if checkpoints else UNKNOWN,
        " / ".join(dict.fromkeys(one.basis for one in ones)),
    ]


def _sum(values: Sequence[float | None], at_least: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    return f"{'≥ ' if at_least or len(known) < len(values) else ''}{_number(math.fsum(known))}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def totals(found: Sequence[Estimate], jobs: int, speeds: Sequence[Speed]) -> list[str]:
    """Return the sums, one per line, with "at least" if a cell is not known or something is left out."""
    known = [one for one in found if one.hours is not None]
    lines = [f"{len(found)} cells; hours of {len(found) - len(known)} are not known."]
    if not known:
        return [*lines, "Run some of them first, 20 steps are enough: python -m benchmarks run, or gpu-check."]
    least = any(one.at_least for one in found)
    hours = [one.hours or 0.0 for one in known]
    word = "GPU hours" if speeds[0].on_gpu else "core hours"
    at = "at least " if least else ""
    lines.append(f"{word[0].upper()}{word[1:]}: {at}{_number(math.fsum(one.processor_hours or 0.0 for one in known))}.")
    wall = max(math.fsum(hours) / jobs, *hours)
    lines.append(f"Wall time, {jobs} cell{'s' if jobs > 1 else ''} at once: {at}{_number(wall)} hours.")
    return [*lines, _disk(known, len(found), jobs)]


def seeds_line(cells: Sequence[Cell]) -> str:
    """Return how many seeds each model has, and how many it takes to show a kept metric; "" without several seeds."""
    book, seeds = load_claims(), grouped({(cell.model, cell.seed): None for cell in cells})
    needed = {model: seeds_of(book, book.stand_ins.get(model, model), {}) for model in seeds if len(seeds[model]) > 1}
    texts = [f"{model} has {len(seeds[model])}, needs {count}" for model, count in needed.items() if count]
    if not texts:
        return ""
    return (
        f"Seeds, for 80 % power to show that a metric is kept ({', '.join(texts)}): by the spread of the small models, "
        "results/reference/mini.json; docs/claims.md."
    )


def _disk(known: Sequence[Estimate], cells: int, jobs: int) -> str:
    sizes: list[float] = [one.record_bytes for one in known if one.record_bytes is not None]
    checkpoints = sorted((one.checkpoint_bytes for one in known if one.checkpoint_bytes is not None), reverse=True)

    def text(counted: Sequence[float], of: Sequence[float]) -> str:
        at = "at least " if len(of) < cells else ""
        return f"{at}{_number(math.fsum(counted) / 2**20)} MiB" if of else UNKNOWN

    held = text(checkpoints[:jobs], checkpoints)
    return (
        f"Disk: records {text(sizes, sizes)}; checkpoints of cells that run at once {held}, deleted when one "
        "has ended. Images, data sets and pretrained weights are not counted."
    )
