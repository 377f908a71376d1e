"""Check whether a record can have been measured: against its cell, its recipe, itself and `plan`. Imports no torch.

`CellResult` refuses records that no table could show; this module refuses records that no training can have left, as
they are no evidence. It looks for what people and programs get wrong, not for forgeries, whose figures would agree.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.paths import ROOT
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from benchmarks.core.sample_counts import planned_steps, steps_per_second
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, is_count, is_number

EXACT = 1e-6
"""Largest relative difference between two forms of one figure, by rounding alone."""
ROUNDING = 0.01
"""Largest relative difference between a time and the seconds that it is computed from."""
OF_LAUNCHED = ("backend", "ranks_per_host", "data_hash", "threads")
"""Facts of each record whose ranks were launched; those of the backend local may have run in the process that asked."""
METRICS = {
    "digits": ("accuracy", True),
    "questions": ("f1", True),
    "bytes": ("perplexity", False),
    "cifar": ("top1", True),
    "imagenet": ("top1", True),
    "imagenet-half": ("top1", True),
    "squad": ("f1", True),
    "wikitext": ("perplexity", False),
}
"""The metric of each task, and whether more of it is better; a test compares with the tasks, which import torch."""
OBSERVED = {"contraction": (0, math.inf), "cosine": (-1, 1), "density": (0, 1), "bytes": (0, math.inf)}
"""The least and the largest value of what is observed of a compressed step."""


def unsound(record: CellResult) -> str | None:
    """Return in one line why a finished record cannot have been measured; None if it can.

    Its seconds are checked as it is read (`wrong_seconds`), since those of long trainings are not kept.
    """
    checks = (_wrong_training, _wrong_metric, _wrong_observations, _wrong_ranks, of_another_cell, _wrong_origin)
    return next(chain.from_iterable(check(record) for check in checks), None)


def wrong_seconds(record: CellResult) -> str:
    """Return in one line what is wrong with the seconds of a whole record, as it is in its file; "" if nothing is."""
    seconds, speed, wall = record.step_seconds, float(record.steps_per_second or 0), float(record.wall_seconds or 0)
    if len(seconds) != record.steps or min(seconds, default=0) <= 0:
        return f"step_seconds: {len(seconds)} that took time are needed for {record.steps} steps"
    if abs(speed - (counted := steps_per_second(seconds))) > ROUNDING * counted:
        return f"steps_per_second: {speed:.4g}, by its step_seconds {counted:.4g}"
    if wall < (1 - ROUNDING) * sum(seconds):
        return f"wall_seconds: {wall:.4g} is less than its steps took, {sum(seconds):.4g}"
    phases = [str(rank["phase_seconds"]) for rank in record.per_rank if rank.get("phase_seconds")]
    if len({*phases}) < len(phases):
        return "per_rank: two ranks took the same seconds in every phase: one is a copy of the other"
    return ""


def _wrong_training(record: CellResult) -> Iterator[str]:
    """Yield in which way steps or evaluations are not those of the training."""
    steps, history, recipe = record.steps, record.metric_history, WORKLOADS[record.cell.model]
    planned, at_least = planned_steps(record.cell)
    if steps < 1:
        yield "steps: 0, so nothing was trained"
    if planned and (steps < planned or (steps > planned and not at_least)):
        yield f"steps: {steps}, its cell and recipe have {planned}{' or more' if at_least else ''}"
    if not history or any(value is None for pair in history for value in pair):
        yield "metric_history: empty or null, so the metric was never evaluated"
        return
    taken, every = [int(step or 0) for step, _ in history], recipe.evaluate_every
    if taken != sorted(set(taken)) or taken[0] < 1 or taken[-1] != steps:
        yield f"metric_history: its steps, up to {taken[-1]}, are not those of a training of {steps}"
    if history[-1][1] != record.metric:
        yield f"metric: {record.metric} is not the end of metric_history, {history[-1][1]}"
    if every and taken[:-1] != [*range(every, steps, every)]:
        yield f"metric_history: evaluations after the steps {str(taken)[:60]}, its recipe has one every {every} steps"
    if not every and not record.cell.steps and recipe.epochs not in (None, len(history)):
        yield f"metric_history: {len(history)} evaluations, its recipe has {recipe.epochs}"


def _wrong_metric(record: CellResult) -> Iterator[str]:
    """Yield a line for a metric that is not the recipe's, and for values that it cannot have."""
    name, values = record.metric_name, [float(pair[1] or 0) for pair in record.metric_history]
    if (name, record.higher_is_better) != (recipe := METRICS[WORKLOADS[record.cell.model].task]):
        yield f"metric_name: {name}, higher_is_better {record.higher_is_better}; its recipe {recipe[0]}, {recipe[1]}"
    least, most = (1, math.inf) if name == "perplexity" else (0, 100)
    if min(values) < least or max(values) > most:
        yield f"{name}: from {least} to {most:g}; here from {min(values):g} to {max(values):g}"
    if not record.metrics:
        yield "metrics: missing"


def _wrong_observations(record: CellResult) -> Iterator[str]:
    """Yield one line for each value of `contraction` that none can have."""
    points = record.observations.get("contraction", {}).get("points")
    for point in points if isinstance(points, list) else ():
        for name, (least, most) in OBSERVED.items():
            value: Any = point.get(name) if isinstance(point, dict) else str(point)[:40]
            if value is not None and not (is_number(value) and least - EXACT <= value <= most + EXACT):
                yield f"observations: contraction: {name} is {value!r}; it is a number from {least:g} to {most:g}"


def _wrong_ranks(record: CellResult) -> Iterator[str]:
    """Yield one line for each statement about a finished record's ranks that contradicts its bytes or its cell."""
    ended = [rank["status"] for rank in record.per_rank if rank.get("status") not in (None, "ok")]
    if record.failure or ended:
        yield f"failure: {record.failure or ended[0]} in the record of a training that finished"
    peak_read = next((rung["bytes"] for rung in record.ladder if rung["name"] == "peak_allocated"), None)
    if peak_read and peak_read < int(record.total_bytes or 0):
        yield f"ladder: peak_allocated is {peak_read} bytes, less than its model states, {record.total_bytes}"
    ranks: list[dict[str, Any]] = [{name: rank.get(name) for name in BYTE_FIELDS} for rank in record.per_rank]
    if len(ranks) != record.cell.world_size:
        yield f"per_rank: {len(ranks)} ranks, its cell has {record.cell.world_size}"
    fullest = {name: getattr(record, name) for name in BYTE_FIELDS}
    if fullest not in ranks:
        yield f"per_rank: no rank holds the bytes of the record, {record.total_bytes} in total"
    for rank, held in enumerate(ranks):
        if not all(map(is_count, held.values())):
            yield f"per_rank: rank {rank}: {[*held.values()]} are not all whole numbers of bytes, 0 or more"
            return
        states, peak = sum(held[name] for name in STATE_FIELDS), held["peak_states_bytes"]
        if held["total_bytes"] != states:
            yield f"per_rank: rank {rank}: total_bytes: {held['total_bytes']} is not the sum of its states, {states}"
        if not states + held["in_flight_bytes"] == peak <= fullest["peak_states_bytes"]:
            yield f"per_rank: rank {rank}: peak_states_bytes: {peak} is no sum, or more than the record's"


def of_another_cell(record: CellResult) -> Iterator[str]:
    """Yield a line if a record, finished or not, was measured for another cell than its own, or does not say for which.

    What ran in the process that asked need not say it.
    """
    content = record.provenance.get("content")
    if not isinstance(content, dict) or "cell" not in content:
        if record.cell.backend != "local":
            yield "provenance: its content, with the cell it was run for, is missing"
        return
    try:
        name = Cell.from_dict(content["cell"]).name
    except ConfigError as error:
        name = f"no cell ({error})"
    if name != record.cell.name:
        yield f"provenance: it was measured for {name}, and is called {record.cell.name}"


def _wrong_origin(record: CellResult) -> Iterator[str]:
    """Yield one line for each fact of a finished record's origin that contradicts its cell, or is missing."""
    source = record.provenance
    needed = ("device", *(OF_LAUNCHED if record.cell.backend != "local" else ()))
    if missing := [name for name in needed if not source.get(name)]:
        yield f"provenance: {', '.join(missing)}: missing"
    for name in ("backend", "threads"):
        if source.get(name) not in (None, getattr(record.cell, name)):
            yield f"provenance: {name}: {source[name]}, its cell has {getattr(record.cell, name)}"


# --- The bytes of a record against `plan`, as the committed table of what models hold ---

STATES_FILE = ROOT / "results/paper/states.json"
"""Written by `python -m benchmarks measure states`; a test compares it with `plan`."""
FEEDBACK = ("topk", "qsgd", "dgc", "none")
"""Compressors of the claims, which change neither the residual of a scheme nor the optimizer's momentum."""
UNCHANGED = ("parameters_bytes", "gradients_bytes", "optimizer_states_bytes")
"""States that no residual scheme changes."""


@dataclass(frozen=True)
class Planned:
    """Planned bytes of one model, with kept gradients; residuals by `setting_name`."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_states_bytes: int
    residuals_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes of all states with kept gradients and full residuals."""
        return sum(getattr(self, name) for name in UNCHANGED) + self.residuals_bytes["baseline"]


def setting_name(scheme: str, residual_dtype: str | None) -> str:
    """Return the name of a setting in the table."""
    return f"{scheme} {residual_dtype}" if residual_dtype else scheme


@lru_cache
def load_planned() -> dict[str, Planned]:
    """Return the table by model."""
    return {model: Planned(**entry) for model, entry in load_json(STATES_FILE)["models"].items()}


def planned_bytes(cell: Cell, name: str) -> int | None:
    """Return the planned bytes of one of STATE_FIELDS of a cell; None for settings that the table does not have."""
    planned = load_planned().get(cell.model)
    if name == "residuals_bytes" and cell.scheme != "none":
        known = planned.residuals_bytes if planned and not cell.options else {}
        return known.get(setting_name(cell.scheme, cell.residual_dtype))
    if name == "residuals_bytes" or (name == "gradients_bytes" and cell.gradients == "streamed"):
        return 0
    return None if planned is None else int(getattr(planned, name))


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
        "anew with: python -m benchmarks measure states"
    )


def unplanned(cell: Cell, held: Mapping[str, Any], *, exact: bool) -> str | None:
    """Return which bytes of a rank of a cell cannot be those of its model; None if all can.

    Only residuals may differ from the plan, and only upwards: a scheme that saves less than it should is a result, one
    that stores less than it has to is an error of measurement. exact: allow no upward difference either, for the side
    that a saving is measured against.
    """
    for name in STATE_FIELDS:
        if (planned := planned_bytes(cell, name)) is None:
            return f"{name} of {cell.name} has no plan in {STATES_FILE.name}"
        more = name == "residuals_bytes" and not exact and held[name] > planned
        if held[name] != planned and not more:
            return f"{name} of {cell.name} is {held[name]:,}, by plan {planned:,}"
    return None


def mislabelled(record: CellResult) -> str | None:
    """Return which bytes of a record belong to another cell than its own; None if all match, or have no plan."""
    for name in STATE_FIELDS if record.cell.compressor in FEEDBACK else UNCHANGED:
        if (planned := planned_bytes(record.cell, name)) not in (None, getattr(record, name)):
            return f"{name} of {record.cell.name} is {getattr(record, name):,}, by plan {planned:,}"
    return None
