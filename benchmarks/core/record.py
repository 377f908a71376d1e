"""The record of a cell: CellResult, validated when it is read and written. Standard library only."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from benchmarks.core.cell import Cell
from benchmarks.core.checks import Check, all_of, are_numbers, is_text, known_keys, wrong_fields
from benchmarks.core.files import all_finite, finite, load_json, save_json
from benchmarks.core.outcome import Measured
from benchmarks.core.rank_memory import moments_problem, rung_problem
from benchmarks.core.scheme_options import is_plan
from resireduce.errors import ConfigError
from resireduce.planning import STATES

SCHEMA_VERSION = 2
OPTIONAL = ("moments", "messages")
"""Fields that a record may lack."""
STATUSES = ("ok", "oom", "timeout", "node-fail", "diverged", "error")
STATE_FIELDS = tuple(f"{state}_bytes" for state in STATES)
BYTE_FIELDS = (*STATE_FIELDS, "total_bytes", "in_flight_bytes", "peak_states_bytes", "peak_resident_bytes")
NUMBER_FIELDS = ("metric", "steps_per_second", "wall_seconds")
TIME_FIELDS = ("steps_per_second", "units_per_second", "wall_seconds")
LARGEST = 1e100
"""Largest value of any number in an ok record: tables and intervals square them and sum them up."""


class RecordError(ValueError):
    """A record that is incomplete, of another version, or contradicts itself."""


@dataclass(frozen=True, kw_only=True)
class CellResult(Measured):
    """The measurements of one cell; with any status but ok there is a reason, and missing values are None.

    Bytes are those of the rank that holds most; per_rank has every rank's, under the same names.
    """

    cell: Cell
    status: str
    reason: str | None = None
    steps: int = 0
    parameters_bytes: int | None = None
    gradients_bytes: int | None = None
    residuals_bytes: int | None = None
    optimizer_states_bytes: int | None = None
    total_bytes: int | None = None
    """Sum of the four above, of the tensors really held at a step boundary."""
    in_flight_bytes: int | None = None
    peak_states_bytes: int | None = None
    """Bytes at the fullest moment of a step."""
    peak_resident_bytes: int | None = None
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """Rank 0's medians over steps after warm-up: `benchmarks.training.measure.phases.NAMES`, and the whole step."""
    ladder: list[dict[str, Any]] = field(default_factory=list)
    """Rungs of memory of the rank that holds most, as `benchmarks.core.rank_memory.Rung.as_dict`."""
    wall_seconds: float | None = None
    per_rank: list[dict[str, Any]] = field(default_factory=list)
    moments: dict[str, Any] = field(default_factory=dict)
    """The memory of one step over time, of the rank that holds most, `rank`:
    `benchmarks.core.rank_memory.unpack_moments` turns it into a list. Empty in records made before it was measured."""
    failure: dict[str, Any] = field(default_factory=dict)
    """What is known of a failure: `rank`, `step` (from 1) and `phase` in which it ended, and `interrupted` if the same
    command will resume the cell."""
    provenance: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Raise RecordError for a wrong type, and for an ok record that is incomplete or does not add up."""
        for problem in _problems(self):
            raise RecordError(problem)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Build a record from plain values. Raises RecordError, one line.

        Records of earlier versions have `items`, a list of tensors, whose sums are in the record too.
        """
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise RecordError(f"schema_version: {version!r} cannot be read; allowed: {SCHEMA_VERSION}")
        if missing := [f.name for f in fields(cls) if f.name not in values and f.name not in OPTIONAL]:
            raise RecordError(f"record: keys are missing: {', '.join(missing)}")
        values = {name: value for name, value in values.items() if name != "items"}
        try:
            known_keys("record", values, (f.name for f in fields(cls)))
            return cls(**{**values, "cell": Cell.from_dict(values["cell"])})
        except ConfigError as error:
            raise RecordError(str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for strict JSON: the NaN of a diverged cell becomes None."""
        return finite(asdict(self) | {"cell": self.cell.to_dict()})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a record. Raises RecordError, one line with the path, for a missing, half written or invalid file."""
        try:
            return cls.from_dict(load_json(path))
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}") from None
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from None
        except ValueError as error:
            raise RecordError(f"{path}: half written or not JSON ({error}); delete it and run again") from None

    def save(self, path: Path) -> None:
        """Write the record in one move, so that no reader ever sees half of it."""
        save_json(self.to_dict(), path)


def try_load(path: Path) -> CellResult | None:
    """Return the record in a file; None if it is not one."""
    with suppress(RecordError):
        return CellResult.load(path)
    return None


def _problems(result: CellResult) -> list[str]:
    """Return what is wrong with a record, one line each, nothing if all is right."""
    wrong = [
        f"{name}: {getattr(result, name)!r} is not {allowed}"
        for name, allowed in wrong_fields(result, _own_checks(result.status))
    ]
    wrong += [f"ladder: {problem}" for problem in map(rung_problem, result.ladder) if problem] if not wrong else []
    if not wrong and (problem := moments_problem(result.moments, result.peak_states_bytes)):
        wrong = [f"moments: {problem}"]
    if wrong:
        return wrong
    return _ok_problems(result) if result.status == "ok" else []


def _own_checks(status: Any) -> dict[str, tuple[str, Check]]:
    """Return the checks of fields whose type alone does not say what is allowed."""
    return {
        "status": (f"one of {', '.join(STATUSES)}", lambda value: isinstance(value, str) and value in STATUSES),
        "reason": ("a text (required unless ok)", (lambda value: value is None) if status == "ok" else is_text),
        "metric_history": ("a list of [step, value]", _are_pairs),
        "messages": ("lists of names", lambda value: value == [] or is_plan(value)),
        "observations": ("mappings by name", lambda value: isinstance(value, dict) and all_of([*value.values()], dict)),
    }


def _ok_problems(result: CellResult) -> list[str]:
    needed = ("metric_name", "higher_is_better", *NUMBER_FIELDS, *BYTE_FIELDS)
    wrong = [f"{name}: missing, an ok record must have it" for name in needed if getattr(result, name) is None]
    if wrong:
        return wrong
    if problem := _range_problem(result):
        return [problem]
    if not all_finite(vars(result) | {"cell": result.cell.to_dict()}):
        return ["metric: NaN or infinity in an ok record; its status is diverged"]
    total = sum(getattr(result, name) for name in STATE_FIELDS)
    if total != result.total_bytes:
        return [f"total_bytes: {result.total_bytes} is not the sum of {', '.join(STATE_FIELDS)}, {total}"]
    if result.metrics and result.metrics.get(str(result.metric_name)) != result.metric:
        return [f"metric: {result.metric} is not the {result.metric_name} in metrics, {result.metrics}"]
    return []


def _range_problem(result: CellResult) -> str | None:
    """Return which number of an ok record is too large for any measurement: it would make tables overflow."""
    if not result.total_bytes:
        return "total_bytes: 0 is not allowed; an ok record holds a model, 1 byte or more; run its cell again"
    singles = {name: getattr(result, name) for name in (*NUMBER_FIELDS, *BYTE_FIELDS, "units_per_second")}
    numbers = {name: value for name, value in {**result.metrics, **singles}.items() if value is not None}
    steps = result.step_seconds or [0.0]
    for name, value in {**numbers, "step_seconds": max(steps, key=abs)}.items():
        if abs(value) > LARGEST:
            shown = str(value)[:40]
            return f"{name}: {shown} is too large; allowed: up to {LARGEST:g}, and more is diverged; run it again"
    for name, value in {**{name: numbers.get(name, 0) for name in TIME_FIELDS}, "step_seconds": min(steps)}.items():
        if value < 0:
            return f"{name}: {value} is negative; allowed: 0 or more; delete the record and run its cell again"
    return None


def _are_pairs(values: object) -> bool:
    if not all_of(values, (list, tuple)) or any(len(pair) != 2 for pair in values):  # type: ignore[attr-defined]
        return False
    return are_numbers([value for pair in values for value in pair if value is not None])  # type: ignore[attr-defined]
