"""Compute the `plan` of a stretch's cells in parallel, so that the GPU need not wait. Imports no torch in the parent.

The process writes a file for each cell, in order.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_json
from benchmarks.doctor.gpu.agreement import compare
from resireduce.scheme import load

POLL_SECONDS = 0.2
FAILED = "failed"
"""Stands in place of a plan, with the reason why there is none."""


@dataclass
class Plans:
    """A process that plans cells into `folder`, from `start` to `stop`."""

    folder: Path
    process: BaseProcess | None = None

    def start(self, cells: Sequence[Cell]) -> None:
        """Start the process, if there is anything to plan."""
        if cells:
            # Not forked: a fork would inherit what this process has.
            self.process = get_context("spawn").Process(target=_plan, args=(self.folder, cells), daemon=True)
            self.process.start()

    def wait(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """Return the plan of a cell. Raises RuntimeError if there is none, or not within `seconds`."""
        path, ends_at = _file(self.folder, cell), time.monotonic() + seconds
        while not path.exists():
            if self.process is None or not self.process.is_alive() or time.monotonic() > ends_at:
                raise RuntimeError(f"no plan of {cell.name}; python -m resireduce plan makes one")
            time.sleep(POLL_SECONDS)
        planned: dict[str, Any] = load_json(path)
        if FAILED in planned:
            raise RuntimeError(f"no plan of {cell.name}: {planned[FAILED]}")
        return planned

    def stop(self) -> None:
        """Stop the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()


def _file(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.name}.plan.json"


def _plan(folder: Path, cells: Sequence[Cell]) -> None:
    plan_of = load("benchmarks.training.plan_of_cell:plan_of")
    for cell in cells:
        try:
            save_json(plan_of(cell), _file(folder, cell))
        except Exception as error:  # the other cells still get plans
            save_json({FAILED: f"{type(error).__name__}: {error}"}, _file(folder, cell))


def plan_anew(record: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's `record`, from other code or without a plan, with the plan that this code makes.

    Measured values stay unchanged. Imports torch, and takes a few seconds for the largest models.
    """
    plan_of = load("benchmarks.training.plan_of_cell:plan_of")
    planned = plan_of(Cell(**record["cell"]))
    return record | {"planned": planned, "agreement": [compare(rank, planned) for rank in record["ranks"]]}
