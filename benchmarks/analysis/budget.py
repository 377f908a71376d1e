"""`python -m benchmarks cells`: list a config's cells; with --budget estimate their hours from recorded runs."""

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis.grouping import first_of, grouped, starts_of
from benchmarks.analysis.table import Table
from benchmarks.analysis.write import to_screen
from benchmarks.core import config_reader
from benchmarks.core.cell import CELL_FIELDS, Cell
from benchmarks.core.checks import integer, within
from benchmarks.core.files import load_json
from benchmarks.core.matrix import expand_parts
from benchmarks.core.record import LARGEST, CellResult
from benchmarks.core.sample_counts import planned_steps
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, is_number

PLACES = ("results/runs/*", "results/reference/*")
"""Where to look for recorded runs, relative to the root of the project."""
UNKNOWN = "not known"
OF_BUDGET = ("records", "device", "jobs")
"""Options that mean something with --budget only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    config_reader.add_arguments(parser)
    parser.add_argument("--budget", action="store_true", help="estimate what the cells cost, from recorded runs")
    places = f"recorded runs (default: {', '.join(PLACES)})"
    parser.add_argument("--records", metavar="DIR", type=Path, nargs="+", help=places)
    parser.add_argument("--device", help="a part of the device's name (default: the one with most records that fit)")
    parser.add_argument("--jobs", type=int, help="cells that run at once (default: 1)")


def main(args: argparse.Namespace) -> int:
    """Print the cells' names, or the estimates by part and model. Raises ConfigError, one line, for invalid input."""
    if not args.budget:
        if given := [name for name in OF_BUDGET if getattr(args, name) is not None]:
            raise ConfigError(f"{given[0]}: it belongs to --budget; give that too, or leave it out")
        return config_reader.main(args)
    jobs = 1 if args.jobs is None else args.jobs
    integer("jobs", jobs, 1, 10**6)
    config = config_reader.read_config(args.config, args.part)
    with within(args.config):
        parts = expand_parts({key: value for key, value in config.items() if key != "run"})
    # A cell that several parts have counts with the first.
    cells = first_of((cell, str(part)) for part, of_part in parts.items() for cell in of_part)
    speeds = read_speeds(args.records or sorted(path for pattern in PLACES for path in Path().glob(pattern)))
    devices = grouped((speed.device, speed) for speed in sorted(speeds, key=lambda speed: speed.device))
    fitting = {name: its for name, its in devices.items() if (args.device or "").lower() in name.lower()}
    if args.device is not None and not fitting:
        there = "; ".join(devices) or "none"
        raise ConfigError(f"device: {args.device!r} has no records; there are some of: {there}")
    found = {device: _estimates(cells, its) for device, its in (fitting or {UNKNOWN: []}).items()}
    device = max(found, key=lambda one: sum(e.hours is not None for _, e in found[one]))
    estimates = found[device]
    print(to_screen(budget_table(estimates, device)))
    print("\n" + "\n".join(totals([one for _, one in estimates], jobs)))
    if sources := sorted({source for _, one in estimates for source in one.sources}):
        print(f"Recorded in: {', '.join(sources)}")
    if others := sorted({speed.device for speed in speeds} - {device}):
        print(f"There are records of other devices too (--device): {'; '.join(others)}")
    return 0


# --- How fast cells ran: from records, committed intervals and one-GPU checks ---


@dataclass(frozen=True)
class Speed:
    """One recorded cell."""

    cell: Cell
    device: str
    on_gpu: bool
    threads: int
    """Threads per rank."""
    steps: int
    steps_per_second: float
    wall_seconds: float
    """The whole run: start, steps, evaluation, measurements."""
    source: str
    """The folder or file of the record."""


def read_speeds(places: list[Path]) -> list[Speed]:
    """Return the speeds recorded in or below these folders and files, skipping all that is no finished record.

    Raises ConfigError, with one line, if a place does not exist.
    """
    missing = next((place for place in places if not place.exists()), None)
    if missing is not None:
        raise ConfigError(f"records: {missing} is not there; give folders of results/runs or results/reference")
    paths = {path for place in places for path in ([place] if place.is_file() else place.rglob("*.json"))}
    skipped = ("specs", "earlier")  # folders of a run with plain cells, and with records that were replaced
    return [speed for path in sorted(paths) if path.parent.name not in skipped for speed in _read(path)]


def _read(path: Path) -> Iterator[Speed]:
    try:
        values = load_json(path)
        if not isinstance(values, dict):
            return
        if "cell" in values:
            one = CellResult.from_dict(values)
            if one.status == "ok":
                where = {**one.provenance, "source": str(path.parent.parent)}
                yield from _speed(one.cell, where, one.steps, one.steps_per_second, one.wall_seconds)
        for row in values.get("rows", []):
            facts = {"device": "Device", "cpu": "Processor", "cores": "Cores", "threads": "Threads a rank"}
            measured = {key: values["measured"][name] for key, name in facts.items()}
            if "steps_per_second" in row and len(measured["cpu"]) == len(measured["cores"]) == 1:
                cell = Cell.from_dict({name: row[name] for name in CELL_FIELDS if name in row})
                where = {key: those[0] for key, those in measured.items()} | {"source": str(path)}
                yield from _speed(cell, where, row["steps_taken"], row["steps_per_second"], row["wall_seconds"])
        for case in values.get("cases", []):
            cell = Cell.from_dict(case["cell"])
            if case["status"] == "ok" and cell.world_size == 1:  # if ranks share the GPU, speeds mean nothing
                rank = case["ranks"][0]
                where = {**values["provenance"], "threads": rank.get("threads"), "source": str(path)}
                yield from _speed(cell, where, rank["steps"], rank["steps_per_second"], case["wall_seconds"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return  # another kind of file, or half written: it has no usable record


def _speed(cell: Cell, where: dict[str, Any], steps: Any, per_second: Any, wall: Any) -> Iterator[Speed]:
    """Yield the speed of a record whose figures (steps, steps a second, seconds in all) can be computed with."""
    if all(is_number(one) and 0 < one <= LARGEST for one in (steps, per_second, wall)):
        on_gpu = where.get("device") not in (None, "cpu")
        device = str(where["device"]) if on_gpu else f"{where.get('cpu')}, {where.get('cores')} cores"
        threads = int(where.get("threads") or 1)
        yield Speed(cell, device, on_gpu, threads, steps, float(per_second), float(wall), where["source"])


# --- What one cell will take, from records of cells like it; without any, there is no estimate ---


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of one cell; None is not known."""

    cell: Cell
    steps: int | None
    hours: float | None = None
    """Wall time."""
    processor_hours: float | None = None
    """GPU hours (ranks x hours); on a CPU, core hours (ranks x threads x hours)."""
    on_gpu: bool = False
    basis: str = UNKNOWN
    """How the estimate was made: measured, scaled from other records, or not known and why."""
    sources: tuple[str, ...] = ()
    """Where the records behind the estimate are."""
    at_least: bool = True
    """Whether the hours leave something out."""


class Recorded:
    """All records of one device, by work, and by work and number of ranks or setting."""

    def __init__(self, speeds: Iterable[Speed]):
        those = [(_work(speed.cell), speed) for speed in speeds]
        self._by_work = grouped(those)
        self._by_ranks = grouped(((work, speed.cell.world_size), speed) for work, speed in those)
        self._by_setting = grouped(((work, _setting(speed.cell)), speed) for work, speed in those)

    def like(self, cell: Cell) -> tuple[list[Speed], str, bool]:
        """Return the records most like a cell, of its own setting, its own model, or another number of ranks; in words
        what they are; and whether communication is left out."""
        work = _work(cell)
        if exact := self._by_setting.get((work, _setting(cell))):
            return exact, "measured", False
        if same_ranks := self._by_ranks.get((work, cell.world_size)):
            return same_ranks, "measured with other schemes or options", False
        # On a CPU ranks share the cores, so records of another number of ranks say nothing.
        on_gpu = grouped((one.cell.world_size, one) for one in self._by_work.get(work, []) if one.on_gpu)
        if not on_gpu:
            return [], "", False
        nearest = min(on_gpu, key=lambda size: abs(size - cell.world_size))
        ranks = "1 rank" if nearest == 1 else f"{nearest} ranks"
        return on_gpu[nearest], f"scaled from {ranks}: the same time a step, further communication left out", True


def estimate(cell: Cell, recorded: Recorded) -> Estimate:
    """Return the estimated cost of a cell on the device of the records."""
    steps, more = planned_steps(cell)
    if steps is None:
        return Estimate(cell, None, basis="not known: how many steps")
    speeds, basis, left_out = recorded.like(cell)
    if not speeds:
        return Estimate(cell, steps, basis="not known: no record of this model and batch")
    other = (max(0.0, one.wall_seconds - one.steps / one.steps_per_second) for one in speeds)
    hours = (steps / mean(speed.steps_per_second for speed in speeds) + mean(other)) / 3600
    on_gpu = speeds[0].on_gpu
    processors = cell.world_size * (1 if on_gpu else mean(speed.threads for speed in speeds))
    basis += ", on synthetic inputs" if all(speed.cell.data == "synthetic" for speed in speeds) else ""
    basis += f"; more steps, as {more}" if more else ""
    sources = tuple(sorted({speed.source for speed in speeds}))
    return Estimate(cell, steps, hours, processors * hours, on_gpu, basis, sources, at_least=bool(left_out or more))


def _work(cell: Cell) -> tuple[object, ...]:
    """Return the fields that affect the time of a step most."""
    workload = WORKLOADS[cell.model]
    return cell.model, cell.batch_per_rank or workload.batch_per_rank, cell.length or workload.length


def _setting(cell: Cell) -> Cell:
    """Return the cell without the fields that do not affect the time of its step."""
    return replace(cell, seed=0, steps=None, data="real", released=(), observe=(), batch_per_rank=None, length=None)


# --- The table of a config ---


def _estimates(cells: dict[Cell, str], speeds: Sequence[Speed]) -> list[tuple[str, Estimate]]:
    recorded = Recorded(speeds)
    return [(part, estimate(cell, recorded)) for cell, part in cells.items()]


def budget_table(found: Sequence[tuple[str, Estimate]], device: str) -> Table:
    """Return the table with a row for each part, model and number of ranks."""
    rows = grouped(((part, one.cell.model, one.cell.world_size), one) for part, one in found)
    starts, body = starts_of([part for part, _, _ in rows]), []
    for place, ((part, model, ranks), ones) in enumerate(rows.items()):
        steps = sorted({one.steps for one in ones if one.steps is not None})
        ends = " to ".join(f"{step:,}" for step in dict.fromkeys((steps[0], steps[-1]))) if steps else UNKNOWN
        hours = [_sum(ones, name) for name in ("hours", "processor_hours")]
        basis = " / ".join(dict.fromkeys(one.basis for one in ones))
        body.append([part if place in starts else "", model, str(ranks), str(len(ones)), ends, *hours, basis])
    head = ["Part", "Model", "Ranks", "Cells", "Steps", "Hours", _unit([one for _, one in found]), "Hours are"]
    reading = (
        f"On: {device}. Hours: of all cells of a row, one after the other. A cell that several parts have is counted "
        "with the first. ≥: something is left out, as the last column says."
    )
    return Table("budget", "Budget", reading, [], head, body, text_columns=2, group_starts=starts)


def _unit(found: Sequence[Estimate]) -> str:
    return "GPU hours" if any(one.on_gpu for one in found) else "Core hours"


def _sum(ones: Sequence[Estimate], name: str, at_least: str = "≥ ") -> str:
    known = [value for one in ones if (value := getattr(one, name)) is not None]
    text = f"{at_least if any(one.at_least for one in ones) else ''}{_number(math.fsum(known))}"
    return text if known else UNKNOWN


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def totals(found: Sequence[Estimate], jobs: int) -> list[str]:
    """Return the sums, one per line, with "at least" if a cell is not known or something is left out."""
    hours = [one.hours for one in found if one.hours is not None]
    lines = [f"{len(found)} cells; hours of {len(found) - len(hours)} are not known."]
    if not hours:
        return [*lines, "Run some of them first, 20 steps are enough: python -m benchmarks run, or measure gpu."]
    at = "at least " if any(one.at_least for one in found) else ""
    lines.append(f"{_unit(found)}: {_sum(found, 'processor_hours', 'at least ')}.")
    wall = max(math.fsum(hours) / jobs, *hours)
    return [*lines, f"Wall time, {jobs} cell{'s' if jobs > 1 else ''} at once: {at}{_number(wall)} hours."]
