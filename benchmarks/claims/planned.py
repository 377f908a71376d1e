"""What a model holds as `plan` says: the committed table that records of bytes are checked by. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.cell import Cell
from benchmarks.files import load_json
from benchmarks.record import CellResult

STATES_FILE = Path(__file__).parents[2] / "results/paper/states.json"
"""Written by `python -m benchmarks states`; a test compares it with `plan`."""


FEEDBACK = ("topk", "qsgd", "dgc", "none")
"""Compressors of the claims: they leave the residual as a scheme has it, and the optimizer its momentum."""


@dataclass(frozen=True)
class Planned:
    """Bytes of one model: what no residual scheme changes, and residuals by `setting_name`."""

    parameters_bytes: int
    gradients_bytes: int
    """Kept ones; streamed ones are gone between two steps."""
    optimizer_states_bytes: int
    residuals_bytes: Mapping[str, int]


def setting_name(scheme: str, residual_dtype: str | None) -> str:
    """Return the name of a setting in the table."""
    return f"{scheme} {residual_dtype}" if residual_dtype else scheme


@lru_cache
def load_planned(path: Path = STATES_FILE) -> dict[str, Planned]:
    """Return the table by model."""
    return {model: Planned(**entry) for model, entry in load_json(path)["models"].items()}


def planned_residuals(cell: Cell) -> int | None:
    """Return the bytes of residuals that a cell's scheme has; None for settings that the table does not have."""
    if cell.scheme == "none":
        return 0
    planned = load_planned().get(cell.model)
    if planned is None or cell.options:
        return None
    return planned.residuals_bytes.get(setting_name(cell.scheme, cell.residual_dtype))


def unplanned(record: CellResult, *, exact: bool = False) -> str | None:
    """Return which bytes of a record cannot be those of its model; None if all can.

    Only residuals may differ from the plan, and only upwards: a scheme that saves less than it should is a finding,
    one that stores less than it has to is an error of measurement. exact: not upwards either, for what a saving is
    measured against.
    """
    planned = load_planned().get(record.cell.model)
    if planned is None:
        return f"{record.cell.model}: what it holds is not in {STATES_FILE.name}"
    if problem := _unplanned_parts(record, planned):
        return problem
    least, held = planned_residuals(record.cell), int(record.residuals_bytes or 0)
    if least is None:
        return f"residuals_bytes of {record.cell.name} have no plan in {STATES_FILE.name}"
    if held < least or (exact and held > least):
        return f"residuals_bytes of {record.cell.name} is {held:,}, by plan {least:,}"
    return None


def mislabelled(record: CellResult) -> str | None:
    """Return which bytes of a record are not those of its cell, so that it is another cell's; None if all are.

    Of schemes and models without a plan nothing is said.
    """
    planned, residuals = load_planned().get(record.cell.model), planned_residuals(record.cell)
    if planned and (problem := _unplanned_parts(record, planned)):
        return problem
    if residuals in (None, record.residuals_bytes) or record.cell.compressor not in FEEDBACK:
        return None
    return f"residuals_bytes of {record.cell.name} is {record.residuals_bytes:,}, by plan {residuals:,}"


def _unplanned_parts(record: CellResult, planned: Planned) -> str | None:
    """What of the states that no residual scheme changes is not as planned."""
    expected = {
        "parameters_bytes": planned.parameters_bytes,
        "gradients_bytes": planned.gradients_bytes if record.cell.gradients == "kept" else 0,
        "optimizer_states_bytes": planned.optimizer_states_bytes,
    }
    for name, value in expected.items():
        if getattr(record, name) != value:
            return f"{name} of {record.cell.name} is {getattr(record, name):,}, by plan {value:,}"
    return None
