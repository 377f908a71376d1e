"""Answers from a simulation: the fastest, the fastest that fits, and how far compression pays."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.analysis.labels import TIMES
from benchmarks.simulation.break_even import break_even_bandwidth, break_even_density
from benchmarks.simulation.fitting import fastest_that_fits, needed_bytes
from benchmarks.simulation.grid import LOSSLESS
from benchmarks.simulation.rows import Settings
from benchmarks.simulation.sweep import Result, fastest_first
from benchmarks.simulation.views import fastest_dense, name_of
from resireduce.scheme import COMPRESSORS


def answers(chosen: Sequence[Result], results: Sequence[Result], settings: Settings, gradients: str) -> dict[str, Any]:
    """Return plain values: what was simulated, and `answers` for each cluster and number of ranks.

    fastest: of the results `chosen`. fastest_that_fits: of those that fit on the device with `gradients` kept or
    streamed, as planned, with its needed_bytes; None if none fits. speed_up: of the latter over the fastest of all
    `results` without compression. break_even: density and bandwidth up to which the fastest compressor pays.
    """
    needed = needed_bytes(settings.layers, gradients)
    dense = fastest_dense(results)
    found = []
    for name, ranks in dict.fromkeys((one.case.cluster.name, one.case.ranks) for one in chosen):
        here = [one for one in chosen if (one.case.cluster.name, one.case.ranks) == (name, ranks)]
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
    """Return the density and bandwidth up to which the fastest compressor of `results` pays; None without one.

    In JSON a bandwidth of null means any that was tried, up to a thousand times the cluster's.
    """
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
