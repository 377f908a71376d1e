"""A cell's working folder, held by one process at a time, and a copy of its record until it counts as finished."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import finite, lock
from benchmarks.core.record import CellResult, try_load
from benchmarks.core.stop_policy import run_folder

WORKING = "working"
"""Folder of a run for its running cells, beside the folder of its records."""
WAIT_SECONDS = 120.0
"""How long to wait for another process that runs the cell: the loss of its node is noticed only after a while."""


@contextmanager
def working_folder(cell: Cell, output: Path, shared: bool) -> Iterator[Path]:
    """Yield an empty folder for the launch of a cell, which is deleted at the end.

    With `shared` it lies beside the folder of the record, where all nodes see it, and no other process may run the
    cell. Raises ConfigError, one line, if one does and does not end soon.
    """
    if not shared:
        with tempfile.TemporaryDirectory(prefix="resireduce-cell-") as name:
            yield Path(name)
        return
    run = run_folder(output)
    folder = run / WORKING / cell.name
    with lock(run / WORKING / f"{cell.name}.lock", cell.name, WAIT_SECONDS):
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def keep(result: CellResult, path: Path) -> None:
    """Save a copy of a record where Snakemake does not find it to delete; a full disk is left to the record itself."""
    with suppress(OSError):
        result.save(path)


def find_kept(path: Path | None, content: Mapping[str, Any]) -> CellResult | None:
    """Return the record that `keep` has saved, if its cell, code, packages and weights are exactly the same."""
    found = try_load(path) if path is not None else None
    # Compare in JSON's form, in which numeric keys have become texts.
    same = found and found.provenance.get("content") == json.loads(json.dumps(finite(content)))
    return found if same else None


def forget(paths: Iterable[Path]) -> None:
    """Delete the copies of finished cells' records: otherwise a record that the user deletes would come back."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
