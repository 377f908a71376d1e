"""Check the bytes of a record against `plan`, as the committed table of what models hold. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.record import STATE_FIELDS, CellResult
from resireduce.errors import ConfigError

STATES_FILE = ROOT / "results/paper/states.json"
"""Written by `python -m benchmarks states`; a test compares it with `plan`."""

FEEDBACK = ("topk", "qsgd", "dgc", "none")
"""Compressors of the claims, which change neither the residual of a scheme nor the optimizer's momentum."""


@dataclass(frozen=True)
class Planned:
    """Planned bytes of one model: states that no residual scheme changes, and residuals by `setting_name`."""

    parameters_bytes: int
    gradients_bytes: int
    """Kept gradients; streamed ones are gone between two steps."""
    optimizer_states_bytes: int
    residuals_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all states with kept gradients and full residuals."""
        dense = self.parameters_bytes + self.gradients_bytes + self.optimizer_states_bytes
        return dense + self.residuals_bytes["baseline"]


def setting_name(scheme: str, residual_dtype: str | None) -> str:
    """Return the name of a setting in the table."""
    return f"{scheme} {residual_dtype}" if residual_dtype else scheme


@lru_cache
def load_planned() -> dict[str, Planned]:
    """Return the table by model. Raises ConfigError, one line, if it is damaged."""
    try:
        return {model: Planned(**entry) for model, entry in load_json(STATES_FILE)["models"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"states: {STATES_FILE} cannot be read ({error}); write it with python -m benchmarks states"
        ) from None


def planned_residuals(cell: Cell) -> int | None:
    """Return the planned bytes of residuals of a cell; None for settings that the table does not have."""
    if cell.scheme == "none":
        return 0
    planned = load_planned().get(cell.model)
    if planned is None or cell.options:
        return None
    return planned.residuals_bytes.get(setting_name(cell.scheme, cell.residual_dtype))


def fewer_than_planned(cell: Cell, name: str, old: float, new: float) -> str | None:
    """Return why `new` bytes of a model state cannot all have been measured; None if they can.

    A state that held what is planned, or more, and now holds less than that lacks tensors: a library that saves more
    also plans less. name: one of `benchmarks.core.record.STATE_FIELDS`, which else may be smaller.
    """
    least = planned_bytes(cell, name) if name in STATE_FIELDS else None
    if least is None or not new < least <= old:
        return None
    return (
        f"{int(new):,} bytes, by plan {least:,}: not all tensors were measured; where less is meant, write the plan "
        "anew with: python -m benchmarks states"
    )


def planned_bytes(cell: Cell, name: str) -> int | None:
    """Return the planned bytes of one of STATE_FIELDS of a cell; None for settings that the table does not have."""
    if name == "residuals_bytes":
        return planned_residuals(cell)
    planned = load_planned().get(cell.model)
    if name == "gradients_bytes" and cell.gradients == "streamed":
        return 0
    return None if planned is None else int(getattr(planned, name))


def unplanned(record: CellResult, *, exact: bool) -> str | None:
    """Return which bytes of a record cannot be those of its model; None if all can.

    Only residuals may differ from the plan, and only upwards: a scheme that saves less than it should is a result, one
    that stores less than it has to is an error of measurement. exact: allow no upward difference either, for the side
    that a saving is measured against.
    """
    planned = load_planned().get(record.cell.model)
    if planned is None:
        return f"{record.cell.model}: what it holds is not in {STATES_FILE.name}"
    if problem := _unplanned_parts(record):
        return problem
    least, held = planned_residuals(record.cell), int(record.residuals_bytes or 0)
    if least is None:
        return f"residuals_bytes of {record.cell.name} have no plan in {STATES_FILE.name}"
    if held < least or (exact and held > least):
        return f"residuals_bytes of {record.cell.name} is {held:,}, by plan {least:,}"
    return None


def mislabelled(record: CellResult) -> str | None:
    """Return which bytes of a record belong to another cell than its own; None if all match.

    Schemes and models without a plan are not checked.
    """
    planned, residuals = record.cell.model in load_planned(), planned_residuals(record.cell)
    if planned and (problem := _unplanned_parts(record)):
        return problem
    if residuals in (None, record.residuals_bytes) or record.cell.compressor not in FEEDBACK:
        return None
    return f"residuals_bytes of {record.cell.name} is {record.residuals_bytes:,}, by plan {residuals:,}"


def _unplanned_parts(record: CellResult) -> str | None:
    """Return which state that no residual scheme changes is not as planned."""
    for name in ("parameters_bytes", "gradients_bytes", "optimizer_states_bytes"):
        if getattr(record, name) != (value := planned_bytes(record.cell, name)):
            return f"{name} of {record.cell.name} is {getattr(record, name):,}, by plan {value:,}"
    return None
