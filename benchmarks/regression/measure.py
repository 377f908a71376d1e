"""Train the cells of a config one after another, for their memory: a process for each would take most of the time."""

import gc
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

from benchmarks.cell import Cell
from benchmarks.cells import read_config
from benchmarks.data.prepared import find_root
from benchmarks.outcomes import to_result
from benchmarks.record import CellResult
from benchmarks.workflow.settings import get_cells, write_specs

PROGRESS_SECONDS = 5.0


def measure(config_file: Path, folder: Path) -> None:
    """Write a record for every cell of a config into a run's folder, replacing those that are there.

    Cells with backend local are trained in this process: their speed, and what the process has resident, say nothing.
    The others are trained as always, by `python -m benchmarks run`. No cell starts from pretrained weights here: bytes
    do not depend on them. Raises ConfigError, one line, for a config that cannot be used.
    """
    config = read_config(config_file)
    cells = get_cells(config)
    write_specs(str(folder), config, cells.values())
    (folder / "logs").mkdir(exist_ok=True)
    started = said = time.monotonic()
    for number, cell in enumerate(cells.values(), start=1):
        _measure_one(cell, folder)
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            print(f"measured {number} of {len(cells)} cells, {said - started:.0f} s", file=sys.stderr, flush=True)


def _measure_one(cell: Cell, folder: Path) -> None:
    record, log = folder / f"cells/{cell.name}.json", folder / f"logs/{cell.name}.log"
    for old in (record, record.with_suffix(".failed.json")):
        old.unlink(missing_ok=True)
    with log.open("w", encoding="utf-8") as file:
        if cell.backend == "local":
            with redirect_stderr(file):
                _train_here(cell).save(record)
        else:
            command = [sys.executable, "-m", "benchmarks", "run", "--cell", str(folder / f"specs/{cell.name}.json")]
            subprocess.run([*command, "--output", str(record)], stdout=file, stderr=file, check=False)


def _train_here(cell: Cell) -> CellResult:
    from benchmarks.training.rank import run_rank
    from resireduce.comm.local import LocalCommunicator

    started = time.monotonic()
    outcome = run_rank(cell, LocalCommunicator(), None, find_root())
    outcome.pop("baseline_bytes", None)
    gc.collect()  # what a cell leaves is not the next one's
    return to_result(cell, [outcome], time.monotonic() - started, None)
