"""`python -m tests.full_set FOLDER`: a run of a whole config with holes of every kind, made by arithmetic, for tests.

Nothing of it was measured. Every record is valid, but for those that are broken on purpose.
"""

import argparse
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import save_json
from benchmarks.core.rank_memory import METHODS
from benchmarks.core.record import CellResult
from benchmarks.core.run_config import get_cells, get_config
from tests.full_size import make_full_result, rung

PAPER = Path("benchmarks/config/paper.yaml")
HOLES = ("absent", "oom", "timeout", "node-fail", "diverged", "error", "broken", "unfinished")
REASONS = {
    "oom": "CUDA out of memory: tried to allocate 392 MiB",
    "timeout": "its time limit of 14400 s was over",
    "node-fail": "node07 was lost (NODE_FAIL)",
    "diverged": "loss is nan at step 117",
    "error": "ValueError: questions: 3 are not in the file | & 100 % of them_",
}
HOLE_EVERY, FIRST_HOLE = 23, 7
"""Places in the config at which a hole is: few enough that most settings have a seed left."""


@dataclass(frozen=True)
class FullSet:
    """What was written."""

    records: int
    holes: int
    bytes: int


def main(arguments: Iterable[str] | None = None) -> None:
    """Write the folder that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.full_set", description=__doc__)
    parser.add_argument("folder", type=Path, help="the run's folder; must not exist, or be empty")
    parser.add_argument("--records", type=int, help="records at most, spread evenly; the others are not run")
    parser.add_argument("--bytes-each", type=int, default=0, help="bytes of a record, at least")
    parser.add_argument("--config", type=Path, default=PAPER, help="the matrix (default: paper.yaml)")
    args = parser.parse_args(None if arguments is None else list(arguments))
    if args.folder.exists() and any(args.folder.iterdir()):
        parser.error(f"{args.folder} is not empty")
    made = make_full_set(args.folder, args.records, args.bytes_each, args.config)
    print(f"{args.folder}: {made.records:,} records, {made.holes} holes, {made.bytes / 1e6:,.0f} MB")


def make_full_set(folder: Path, records: int | None = None, bytes_each: int = 0, config: Path = PAPER) -> FullSet:
    """Write config.json and a record for each cell of config, but for holes; return how many there are of each."""
    raw = read_config(config)
    cells = list(get_cells(raw).values())
    save_json(get_config(raw), folder / "config.json")
    (folder / "cells").mkdir(parents=True)
    (folder / "logs").mkdir()
    chosen = cells if records is None else spread(cells, records)
    made = total = holes = 0
    for place, cell in enumerate(chosen):
        if place % HOLE_EVERY == FIRST_HOLE:
            make_hole(folder, cell, HOLES[place // HOLE_EVERY % len(HOLES)])
            holes += 1
            continue
        text = json.dumps(padded(make_full_result(cell), bytes_each).to_dict(), indent=1, allow_nan=False) + "\n"
        # Not save_json: flushing thousands of files to the disk takes minutes.
        (folder / f"cells/{cell.name}.json").write_text(text)
        made, total = made + 1, total + len(text)
    return FullSet(made, holes, total)


def spread(cells: list[Cell], count: int) -> list[Cell]:
    """Return count of the cells, evenly spread over them."""
    count = min(count, len(cells))
    return [cells[i * len(cells) // count] for i in range(count)]


def make_hole(folder: Path, cell: Cell, kind: str) -> None:
    """Leave what a cell that ended in such a way leaves."""
    record, failed = folder / f"cells/{cell.name}.json", folder / f"cells/{cell.name}.failed.json"
    if kind == "broken":
        record.write_text(json.dumps(make_full_result(cell).to_dict(), indent=1)[:700])
    elif kind == "unfinished":
        (folder / f"logs/{cell.name}.log").write_text("step 100 of 1000\n")
    elif kind != "absent":
        ended = CellResult(
            cell=cell, status=kind, reason=REASONS[kind], failure={"rank": 0, "step": 117, "phase": "forward_backward"}
        )
        failed.write_text(json.dumps(ended.to_dict(), indent=1) + "\n")


def padded(result: CellResult, bytes_each: int) -> CellResult:
    """Return a record that takes at least so many bytes as a file: of a longer training, with more of each rank."""
    missing = bytes_each - len(json.dumps(result.to_dict(), indent=1))
    if missing <= 0:
        return result
    own = random.Random(f"padding of {result.cell.name}")
    ladder = [rung(name, int(result.total_bytes or 0)) for name in METHODS]
    by_rank = len(json.dumps(ladder, indent=1)) * 1.4
    ranks = int(min(len(result.per_rank), missing / 2 / by_rank))
    per_rank = [{**one, "ladder": ladder} if rank < ranks else one for rank, one in enumerate(result.per_rank)]
    missing -= int(ranks * by_rank * 0.9)
    history = more_history(result, max(0, missing // 8) // 40)
    missing -= len(json.dumps(history, indent=1)) - len(json.dumps(result.metric_history, indent=1))
    usual = 1 / float(result.steps_per_second or 1)
    seconds = [*result.step_seconds, *(own.gauss(usual, usual / 50) for _ in range(max(0, missing) // 20))]
    return replace(result, per_rank=per_rank, metric_history=history, step_seconds=seconds)


def more_history(result: CellResult, points: int) -> list[Any]:
    """Return the history with so many more points, between its own."""
    steps, own = result.steps, list(result.metric_history)
    known = {step for step, _ in own}
    more = {max(1, steps * i // (points + 1)) for i in range(1, points + 1)} - known
    between = [[step, min(own, key=lambda pair: abs((pair[0] or 0) - step))[1]] for step in more]
    return sorted([*own, *between])


if __name__ == "__main__":
    main()
