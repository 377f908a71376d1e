"""`python -m benchmarks cells`: list a config's cells; with --budget estimate their hours from recorded runs."""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.analysis.grouping import first_of, grouped, starts_of
from benchmarks.analysis.table import Table, to_screen
from benchmarks.core import config_reader
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.checks import within
from benchmarks.core.files import load_json
from benchmarks.core.matrix import expand_parts
from benchmarks.core.record import LARGEST, CellResult
from benchmarks.core.sample_counts import planned_steps
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, is_number

PLACES = ("results/runs/*/cells/*.json", "results/reference/*.json", "results/reference/*/*.json")
"""Where recorded runs are: cells, committed intervals, and checks of one GPU."""
UNKNOWN = "not known"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    config_reader.add_arguments(parser)
    parser.add_argument("--budget", action="store_true", help="estimate what the cells cost, from recorded runs")
    text = "with --budget: a part of the device's name (default: the one with most records that fit)"
    parser.add_argument("--device", default="", help=text)


def main(args: argparse.Namespace) -> int:
    """Print the cells' names, or the estimates by part and model. Raises ConfigError, one line, for invalid input."""
    if not args.budget:
        return config_reader.main(args)
    config = config_reader.read_config(args.config, args.part)
    with within(args.config):
        parts = expand_parts({key: value for key, value in config.items() if key != "run"})
    # A cell that several parts have counts with the first.
    cells = first_of((cell, part) for part, of_part in parts.items() for cell in of_part)
    devices = grouped(
        (one.device, one) for pattern in PLACES for path in sorted(Path().glob(pattern)) for one in read(path)
    )
    fitting = [name for name in sorted(devices) if args.device.lower() in name.lower()]
    if args.device and not fitting:
        raise ConfigError(f"device: {args.device!r} has no records; there are some of: {'; '.join(devices) or 'none'}")
    found = {one: [(part, estimate(cell, devices[one])) for cell, part in cells.items()] for one in fitting}
    found = found or {UNKNOWN: [(part, estimate(cell, [])) for cell, part in cells.items()]}
    device = max(found, key=lambda one: sum(it.hours is not None for _, it in found[one]))
    print(to_screen(budget_table(found[device], device)))
    print(f"\n{len(cells)} cells; hours of {sum(one.hours is None for _, one in found[device])} are not known.")
    print(f"Records are of: {'; '.join(devices) or 'no device; run some cells first, 20 steps are enough'}")
    return 0


# --- How fast cells ran: from records, committed intervals and one-GPU checks ---


class Speed(NamedTuple):
    """One recorded cell."""

    cell: Cell
    device: str
    threads: int | None
    """Threads per rank; None on a GPU."""
    steps: int
    steps_per_second: float
    wall_seconds: float
    """The whole run: start, steps, evaluation, measurements."""


def read(path: Path) -> list[Speed]:
    """Return the speeds in a file; none of a file that is something else, or half written."""
    try:
        return [one for one in _speeds(load_json(path)) if all(0 < it <= LARGEST for it in one[3:] if is_number(it))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _speeds(values: Any) -> Iterator[Speed]:
    if "cell" in values:
        one = CellResult.from_dict(values)
        if one.status == "ok":
            yield _speed(one.cell, one.provenance, one.steps, one.steps_per_second, one.wall_seconds)
    facts = {"device": "Device", "cpu": "Processor", "cores": "Cores", "threads": "Threads a rank"}
    for row in values.get("rows", ()):
        where = {key: values["measured"][name][0] for key, name in facts.items()}
        cell = Cell.from_dict({name: row[name] for name in CELL_FIELDS if name in row})
        yield _speed(cell, where, row["steps_taken"], row["steps_per_second"], row["wall_seconds"])
    for case in values.get("cases", ()):
        if case["status"] == "ok" and len(case["ranks"]) == 1:  # if ranks share the GPU, speeds mean nothing
            rank = case["ranks"][0]
            with suppress(ConfigError):  # one of an earlier version
                cell = Cell.from_dict(case["cell"])
                yield _speed(cell, values["provenance"], rank["steps"], rank["steps_per_second"], case["wall_seconds"])


def _speed(cell: Cell, where: Any, *figures: Any) -> Speed:
    if where.get("device") not in (None, "cpu"):
        return Speed(cell, str(where["device"]), None, *figures)
    return Speed(cell, f"{where.get('cpu')}, {where.get('cores')} cores", int(where.get("threads") or 1), *figures)


# --- What one cell will take, from records of cells like it; without any, there is no estimate ---


class Estimate(NamedTuple):
    """The estimated cost of one cell; None is not known."""

    cell: Cell
    steps: int | None
    basis: str
    """How the estimate was made: measured, scaled from other records, or not known and why."""
    hours: float | None = None
    """Wall time."""
    processor_hours: float | None = None
    """GPU hours (ranks x hours); on a CPU, core hours (ranks x threads x hours)."""


def estimate(cell: Cell, recorded: Sequence[Speed]) -> Estimate:
    """Return the estimated cost of a cell, from the records of one device."""
    steps, more = planned_steps(cell)
    if steps is None:
        return Estimate(cell, None, "not known: how many steps")
    its = [one for one in recorded if _work(one.cell) == _work(cell)]
    same_ranks = [one for one in its if one.cell.world_size == cell.world_size]
    own = [one for one in same_ranks if _treatment(one.cell) == _treatment(cell)]
    # On a CPU ranks share the cores, so records of another number of ranks say nothing.
    others = [one for one in its if one.threads is None]
    speeds = own or same_ranks or others
    if not speeds:
        return Estimate(cell, steps, "not known: no record of this model and batch")
    basis = (
        "measured"
        if own
        else "measured with other schemes or options"
        if same_ranks
        else "at least: without communication"
    )
    basis += ", on synthetic inputs" if all(one.cell.data == "synthetic" for one in speeds) else ""
    basis += f"; at least: more steps, as {more}" if more else ""
    beside = mean(max(0.0, one.wall_seconds - one.steps / one.steps_per_second) for one in speeds)
    hours = (steps / mean(one.steps_per_second for one in speeds) + beside) / 3600
    return Estimate(cell, steps, basis, hours, cell.world_size * mean(one.threads or 1 for one in speeds) * hours)


def _work(cell: Cell) -> tuple[object, ...]:
    """Return the fields that affect the time of a step most."""
    workload = WORKLOADS[cell.model]
    return cell.model, cell.batch_per_rank or workload.batch_per_rank, cell.length or workload.length


def _treatment(cell: Cell) -> tuple[object, ...]:
    """Return the fields that affect the time of a step, of cells with the same work and ranks."""
    others = ("model", "seed", "steps", "data", "released", "observe", "batch_per_rank", "length")
    return tuple(getattr(cell, name) for name in CELL_FIELDS if name not in others)


def budget_table(found: Sequence[tuple[str, Estimate]], device: str) -> Table:
    """Return the table with a row for each part, model and number of ranks."""
    rows = grouped(((part, one.cell.model, one.cell.world_size), one) for part, one in found)
    starts, body = starts_of([part for part, _, _ in rows]), []
    rows |= {("in all", "", ""): [one for _, one in found]}  # type: ignore[dict-item]
    for place, ((part, model, ranks), ones) in enumerate(rows.items()):
        sums = [[getattr(one, name) for one in ones] for name in ("hours", "processor_hours")]
        hours = [UNKNOWN if set(its) == {None} else _number(math.fsum(it or 0 for it in its)) for its in sums]
        basis = " / ".join(dict.fromkeys(one.basis for one in ones)) if model else ""
        body.append([part if place in starts or not model else "", model, str(ranks), str(len(ones)), *hours, basis])
    head = ["Part", "Model", "Ranks", "Cells", "Hours", "GPU or core hours", "Hours are"]
    reading = f"On: {device}. Hours: of all cells of a row whose hours are known, one after the other."
    return Table("budget", "Budget", reading, [], head, body, text_columns=2, group_starts=starts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
