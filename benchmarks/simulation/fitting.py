"""Select the simulated combinations that fit in the device's memory, and whose accuracy records support."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import mean

from benchmarks.core.record import CellResult, try_load
from benchmarks.simulation.grid import LOSSLESS
from benchmarks.simulation.model_layers import Layers
from benchmarks.simulation.sweep import Result, fastest_first
from benchmarks.simulation.wire import payload_of
from resireduce.errors import ConfigError
from resireduce.scheme import load

Key = tuple[str, float, str]
"""Compressor, density and scheme."""
PLANNED_RANKS = 64
"""Up to this many ranks the plan is exact; more would take longer."""
PLANNED = {"bert-adam": "adamw"}
"""Optimizers of recipes, mapped to a name that a plan knows and that has the same states."""


def needed_bytes(layers: Layers, gradients: str) -> Callable[[Result], int]:
    """Return a function from a result to the bytes that a rank needs at the fullest moment.

    These are the model states, as planned with gradients kept or streamed, and the activations that a forward pass
    saves. For more than PLANNED_RANKS ranks it is an upper bound: the largest message's payloads of all further ranks
    are added.
    """
    states = cache(partial(_states, layers, gradients))

    def needed(result: Result) -> int:
        case = result.case
        scheme = "none" if case.compressor == LOSSLESS else case.scheme
        planned = states(case.compressor, case.density, scheme, min(case.ranks, PLANNED_RANKS))
        sent = payload_of(case.compressor, case.density, layers.shapes)
        others = max(0, case.ranks - PLANNED_RANKS) if sent["collective"] == "all_gather" else 0
        return planned + others * max(sent["bytes"]) + layers.activations_bytes

    return needed


def _states(layers: Layers, gradients: str, compressor: str, density: float, scheme: str, ranks: int) -> int:
    """Return the bytes of the model states at the fullest moment of a step."""
    planned = load("resireduce.plan:plan")(
        load("resireduce.planning.models:find_builder")(layers.model),
        optimizer=PLANNED.get(layers.optimizer, layers.optimizer),
        world_size=ranks,
        compressor=compressor,
        density=density,
        scheme=scheme,
        gradients=gradients,
    )
    return int(planned["peak_states"])


def fastest_that_fits(results: Sequence[Result], needed: Callable[[Result], int]) -> tuple[Result, int] | None:
    """Return the fastest of `results` whose `needed` bytes the device has, and these bytes; None if none fits."""
    for result in fastest_first(results):
        count = needed(result)
        if count <= result.case.cluster.device.memory_bytes:
            return result, count
    return None


def supported(records: Iterable[CellResult], model: str, most_lost: float) -> set[Key]:
    """Return the combinations that, by finished `records` of `model`, lose at most the share `most_lost` of the metric
    of training without compression, in the mean over all records. Raises ConfigError if there is nothing to compare
    with."""
    metrics: dict[Key, list[float]] = {}
    higher = True
    for record in records:
        cell = record.cell
        if cell.model == model and record.status == "ok" and record.metric is not None:
            metrics.setdefault((cell.compressor, cell.density, cell.scheme), []).append(float(record.metric))
            higher = bool(record.higher_is_better)
    dense = metrics.get((LOSSLESS, 1.0, "none"))
    if dense is None:
        raise ConfigError(f"records: none is of {model!r} without compression; give a run that has such a cell")
    worst = mean(dense) * (1 - most_lost if higher else 1 + most_lost)
    return {key for key, its in metrics.items() if (mean(its) >= worst if higher else mean(its) <= worst)}


def is_supported(result: Result, keys: set[Key]) -> bool:
    """Return whether records support the combination of `result`."""
    case = result.case
    return (case.compressor, case.density, "none" if case.compressor == LOSSLESS else case.scheme) in keys


def records_in(folder: Path) -> list[CellResult]:
    """Return the records of cells in a run's folder. Raises ConfigError if it has none."""
    found = [record for path in sorted((folder / "cells").glob("*.json")) if (record := try_load(path))]
    if not found:
        raise ConfigError(f"records: {folder} has no records of cells; give a run's folder, such as results/runs/smoke")
    return found
