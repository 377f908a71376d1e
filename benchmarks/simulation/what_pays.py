"""Answers from a simulation: the fastest, the fastest that fits, and how far compression pays."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.analysis.labels import TIMES
from benchmarks.core.progress import counted
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.results import Result, Settings, fastest_dense, fastest_first, name_of, simulate
from benchmarks.simulation.wire import LOSSLESS, Case, Layers, grid, payload_of
from resireduce.errors import ConfigError
from resireduce.scheme import COMPRESSORS, load

# --- Where compression's step equals the best without it ---

DENSITIES = tuple(float(one) for one in np.geomspace(1e-4, 1, 25))
FACTORS = tuple(float(one) for one in np.geomspace(1e-3, 1e3, 37))
"""Multiples of the slowest link's bandwidth that are tried."""


def break_even_density(
    cluster: Cluster, ranks: int, compressor: str, given: Sequence[Case], settings: Settings
) -> float:
    """Return the density up to which `compressor` is faster than none on `ranks` of a cluster; 0 if it never is.

    Both use the best of the merging rules, hierarchies and schemes in the cases `given`. 1: at any density.
    """

    def cases(name: str, density: float) -> list[Case]:
        return _cases(cluster, ranks, name, density, given)

    return _pays_up_to(DENSITIES, cases, compressor, settings)


def break_even_bandwidth(
    cluster: Cluster, ranks: int, compressor: str, density: float, given: Sequence[Case], settings: Settings
) -> float:
    """Return the bandwidth of the slowest level, bytes per second, up to which `compressor` at `density` is faster than
    none on `ranks` of a cluster; 0 if it is slower even at a thousandth of the bandwidth, infinite if it is faster even
    at a thousand times. Both use the best of the merging rules, hierarchies and schemes in the cases `given`."""
    level = "in_node" if ranks <= cluster.ranks_per_node else "between_nodes"
    link = getattr(cluster, level)
    bandwidth = link.bandwidth_bytes_per_second

    def cases(name: str, factor: float) -> list[Case]:
        faster = replace(cluster, **{level: replace(link, bandwidth_bytes_per_second=bandwidth * factor)})
        return _cases(faster, ranks, name, density, given)

    found = _pays_up_to(FACTORS, cases, compressor, settings)
    return float("inf") if found == FACTORS[-1] else found * bandwidth


def _cases(cluster: Cluster, ranks: int, compressor: str, density: float, given: Sequence[Case]) -> list[Case]:
    """Return all cases of one compressor with the rules, hierarchies and schemes of the `given` cases."""
    axes = ("rule", "hierarchy", "scheme")
    found = [list(dict.fromkeys(getattr(case, name) for case in given)) for name in axes]
    return list(grid([cluster], [ranks], [compressor], [density], *found))


def _pays_up_to(
    values: Sequence[float], cases: Callable[[str, float], list[Case]], compressor: str, settings: Settings
) -> float:
    """Return the point in the rising `values` up to which the fastest case of `compressor` is faster than that of none,
    interpolated over the logarithm; 0 if it is not at the first one, and the last one if it is at all."""
    steps = []
    for name in (LOSSLESS, compressor):
        places = [(place, case) for place, value in enumerate(values) for case in cases(name, value)]
        lowest = np.full(len(values), np.inf)
        for (place, _), one in zip(places, simulate([case for _, case in places], settings), strict=True):
            lowest[place] = min(lowest[place], one.step_seconds)
        steps.append(lowest)
    differences = steps[1] - steps[0]
    slower = np.flatnonzero(differences >= 0)
    if not slower.size:
        return float(values[-1])
    place = int(slower[0])
    if not place:
        return 0.0
    share = differences[place - 1] / (differences[place - 1] - differences[place])
    return float(values[place - 1] * (values[place] / values[place - 1]) ** share)


# --- What fits in the device's memory ---

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
    for result in counted("candidates planned for the device's memory", fastest_first(results), len(results)):
        try:
            count = needed(result)
        except ConfigError:  # a compressor that does not go with the model's optimizer
            continue
        if count <= result.case.cluster.device.memory_bytes:
            return result, count
    return None


# --- Answers ---


def answers(results: Sequence[Result], settings: Settings, gradients: str) -> dict[str, Any]:
    """Return plain values: what was simulated, and `answers` for each cluster and number of ranks.

    fastest_that_fits: of those that fit on the device with `gradients` kept or streamed, as planned, with its
    needed_bytes; None if none fits. speed_up: of it over the fastest without compression. break_even: density and
    bandwidth up to which the fastest compressor pays.
    """
    needed = needed_bytes(settings.layers, gradients)
    dense = fastest_dense(results)
    found = []
    for name, ranks in dict.fromkeys((one.case.cluster.name, one.case.ranks) for one in results):
        here = [one for one in results if (one.case.cluster.name, one.case.ranks) == (name, ranks)]
        best, needs = fastest_that_fits(here, needed) or (None, None)
        plain = dense.get((name, ranks))
        found.append(
            {
                "cluster": name,
                "ranks": ranks,
                "fastest": fastest_first(here)[0].as_dict(),
                "fastest_that_fits": best.as_dict() if best else None,
                "called": name_of(best.case) if best else None,
                "needed_bytes": needs,
                "memory_bytes": here[0].case.cluster.device.memory_bytes,
                "speed_up": plain / best.step_seconds if best and plain else None,
                "break_even": _break_even(here, settings) if plain else None,
            }
        )
    layers = settings.layers
    return {"simulated": True, "model": layers.model, "batch_per_rank": layers.batch, "answers": found}


def _break_even(results: Sequence[Result], settings: Settings) -> dict[str, Any] | None:
    """Return the density and bandwidth up to which the fastest compressor of `results` pays; None without one."""
    lossy = [one for one in results if one.case.compressor != LOSSLESS]
    if not lossy:
        return None
    case = fastest_first(lossy)[0].case
    cases = [one.case for one in results]
    selects = COMPRESSORS[case.compressor].selects
    place = (case.cluster, case.ranks, case.compressor)
    return {
        "compressor": case.compressor,
        "density": case.density,
        "up_to_density": break_even_density(*place, cases, settings) if selects else None,
        # In JSON null means any bandwidth that was tried, up to a thousand times the cluster's.
        "up_to_bytes_per_second": break_even_bandwidth(*place, case.density, cases, settings),
    }


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return the answers `found` as lines for a screen."""
    return [line for one in found["answers"] for line in _lines(one)]


def _lines(one: Mapping[str, Any]) -> list[str]:
    where = f"{one['cluster']}, {one['ranks']} ranks"
    memory = f"{one['memory_bytes'] / 1e9:.0f} GB"
    if one["fastest_that_fits"] is None:
        lines = [f"{where}: nothing fits in {memory}; give a smaller --batch, or other schemes."]
    else:
        step = 1000 * one["fastest_that_fits"]["step_seconds"]
        faster = f", {one['speed_up']:.2f} {TIMES} the fastest without compression" if one["speed_up"] else ""
        lines = [
            f"{where}: fastest that fits ({one['needed_bytes'] / 1e9:.1f} of {memory}): {one['called']}, {step:.2f} ms"
            f"{faster}."
        ]
    return lines + ([f"{where}: {_pays(one['break_even'])}"] if one["break_even"] else [])


def _pays(even: Mapping[str, Any]) -> str:
    """Return in words how far the fastest compressor pays."""
    name, speed = even["compressor"], even["up_to_bytes_per_second"]
    if not speed:
        return f"{even['compressor']} pays at no bandwidth down to a thousandth of this."
    slow = "at any bandwidth" if math.isinf(speed) else f"up to {8 * speed / 1e9:.3g} Gbit/s"
    if even["up_to_density"] is None:
        return f"{name} pays {slow}."
    dense = f"up to a density of {even['up_to_density']:.2g}" if even["up_to_density"] else "at no density here"
    return f"{name} pays {dense}; at {even['density']:g} {slow}."
