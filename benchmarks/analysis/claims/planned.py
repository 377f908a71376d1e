"""Check whether a record can have been measured: against its cell, its recipe, itself and `plan`. Imports no torch.

The plan is the committed table of the bytes that models hold. `CellResult` refuses records that no table could show;
this module refuses records that no training can have left, as they are no evidence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from benchmarks.analysis.claims.contradictions import contradictions
from benchmarks.analysis.claims.held import wrong_moments, wrong_ranks
from benchmarks.analysis.claims.histories import wrong_history, wrong_metric
from benchmarks.analysis.claims.origins import wrong_origin
from benchmarks.analysis.claims.seconds import ROUNDING, wrong_seconds
from benchmarks.analysis.reading import STRETCHES
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.record import STATE_FIELDS, CellResult
from benchmarks.core.sample_counts import planned_steps
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


THINNED = 0.5
"""Largest relative difference between a speed and times that were kept as means of several steps: their median is not
that of the steps."""


def unsound(record: CellResult) -> str | None:
    """Return in one line why a finished record cannot have been measured; None if it can."""
    checks = (_wrong_steps, wrong_history, wrong_metric, wrong_ranks, wrong_moments, contradictions, wrong_origin)
    return next((problem for check in (*checks, _wrong_times) for problem in check(record)), None)


def _wrong_steps(record: CellResult) -> Iterator[str]:
    if record.steps < 1:
        yield "steps: 0, so nothing was trained"
    planned, at_least = planned_steps(record.cell)
    if planned and (record.steps < planned or (record.steps > planned and not at_least)):
        yield f"steps: {record.steps}, its cell and recipe have {planned}{' or more' if at_least else ''}"


def _wrong_times(record: CellResult) -> Iterator[str]:
    seconds, speed = record.step_seconds, float(record.steps_per_second or 0)
    if not record.phase_seconds.get("step"):
        yield "phase_seconds: step: missing"
    if len(seconds) != STRETCHES or record.steps < 2 * STRETCHES or min(seconds) <= 0:
        yield from wrong_seconds(record)
        return
    # Thinned: `contradicted_seconds` saw all of them when the record was read.
    counted, taken = 1 / median(seconds), sum(seconds) * (record.steps // STRETCHES)
    if abs(speed - counted) > THINNED * counted:
        yield f"steps_per_second: {speed:.4g}, by its step_seconds {counted:.4g}"
    if float(record.wall_seconds or 0) < (1 - ROUNDING) * taken:
        yield f"wall_seconds: {record.wall_seconds:.4g} is less than its steps took, {taken:.4g}"
