"""What `plan` says of the cells of a stretch, computed beside it: the GPU need not wait for it. No torch in the parent.

`python -m benchmarks.doctor.gpu.plans FOLDER` reads its `cells.json` and leaves a file for each cell, in their order.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_json
from benchmarks.core.paths import ROOT
from resireduce.scheme import load

POLL_SECONDS = 0.2


@dataclass
class Plans:
    """A process that plans `cells` in `folder`, from `start` to `stop`."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, cells: Sequence[Cell], on_gpu: bool) -> None:
        """Begin; if there is anything to plan."""
        if not cells:
            return
        save_json({"on_gpu": on_gpu, "cells": [cell.to_dict() for cell in cells]}, self.folder / "cells.json")
        self.process = subprocess.Popen([sys.executable, "-m", __name__, str(self.folder)], cwd=ROOT)

    def wait(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """Return the plan of a cell. Raises RuntimeError if there is none, or not in so many seconds."""
        path, ends_at = _file(self.folder, cell), time.monotonic() + seconds
        while not path.exists():
            if self.process is None or self.process.poll() is not None or time.monotonic() > ends_at:
                raise RuntimeError(f"no plan of {cell.name}; python -m resireduce plan makes one")
            time.sleep(POLL_SECONDS)
        planned: dict[str, Any] = load_json(path)
        return planned

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _file(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.name}.plan.json"


def main() -> None:
    """Plan one cell after the other."""
    plan_of = load("benchmarks.training.plan_of_cell:plan_of")
    folder = Path(sys.argv[1])
    wanted = load_json(folder / "cells.json")
    for values in wanted["cells"]:
        cell = Cell.from_dict(values)
        save_json(plan_of(cell, on_gpu=wanted["on_gpu"]), _file(folder, cell))


if __name__ == "__main__":
    main()
