"""Takes the place of benchmarks/launching/run.py in copies of the tree: a record by arithmetic instead of training.

A cell whose name is in fail.txt fails as a crashed one does; one named in slow.txt waits until it is killed.
"""

import argparse
import json
import time
from pathlib import Path

from benchmarks.core.cell import Cell
from tests.records import make_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cell", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--weights", type=Path)
    for option in ("--runtime", "--image", "--launcher", "--site", "--keep"):
        parser.add_argument(option)


def main(args: argparse.Namespace) -> int:
    cell = Cell.from_dict(json.loads(args.cell.read_text()))
    failed = args.output.with_name(f"{args.output.stem}.failed.json")
    if _named("fail.txt", cell):
        record = {**make_result(cell).to_dict(), "status": "error", "reason": "rank 1 was killed (SIGKILL)"}
        failed.write_text(json.dumps(record))
        return 1
    while _named("slow.txt", cell):
        time.sleep(0.1)
    make_result(cell).save(args.output)
    failed.unlink(missing_ok=True)
    with open("trained.txt", "a") as log:
        log.write(f"{cell.name}\n")
    print(f"{cell.name}  trained")
    return 0


def _named(file: str, cell: Cell) -> bool:
    return Path(file).exists() and cell.name in Path(file).read_text().split()
