"""A run of a whole config with holes of every kind, made by arithmetic, for tests.

Nothing of it was measured. Every record is valid, but for those that are broken on purpose.
"""

import json
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import save_json
from benchmarks.core.record import CellResult
from benchmarks.core.run_config import get_cells, get_config
from tests.full_size import make_full_result

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


def make_full_set(folder: Path) -> None:
    """Write config.json of the paper's matrix and a record for each of its cells, but for holes."""
    raw = read_config(PAPER)
    save_json(get_config(raw), folder / "config.json")
    (folder / "cells").mkdir(parents=True)
    (folder / "logs").mkdir()
    for place, cell in enumerate(get_cells(raw).values()):
        if place % HOLE_EVERY == FIRST_HOLE:
            make_hole(folder, cell, HOLES[place // HOLE_EVERY % len(HOLES)])
            continue
        text = json.dumps(make_full_result(cell).to_dict(), indent=1, allow_nan=False) + "\n"
        # Not save_json: flushing thousands of files to the disk takes minutes.
        (folder / f"cells/{cell.name}.json").write_text(text)


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
