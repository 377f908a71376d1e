"""Find the density and the bandwidth up to which compression pays: where its step equals the best without it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.grid import LOSSLESS, Case, grid
from benchmarks.simulation.rows import Settings
from benchmarks.simulation.sweep import Result, simulate
from resireduce.merging.rules import Array
from resireduce.scheme import COMPRESSORS

DENSITIES = tuple(float(one) for one in np.geomspace(1e-4, 1, 25))
FACTORS = tuple(float(one) for one in np.geomspace(1e-3, 1e3, 37))
"""Multiples of the slowest link's bandwidth that are tried."""


def break_even_density(
    cluster: Cluster, ranks: int, compressor: str, given: Sequence[Case], settings: Settings
) -> float:
    """Return the density up to which `compressor` is faster than none on `ranks` of a cluster; 0 if it never is.

    Both use the best of the merging rules, hierarchies and schemes in the cases `given`. 1: at any density.
    """
    results = simulate(_cases(cluster, ranks, LOSSLESS, [1.0], given), settings)
    dense = min(one.step_seconds for one in results)
    cases = _cases(cluster, ranks, compressor, DENSITIES, given)
    steps = _lowest(simulate(cases, settings), [case.density for case in cases], DENSITIES)
    return _crossing(DENSITIES, steps - dense)


def break_even_bandwidth(
    cluster: Cluster, ranks: int, compressor: str, density: float, given: Sequence[Case], settings: Settings
) -> float:
    """Return the bandwidth of the slowest level, bytes per second, up to which `compressor` at `density` is faster than
    none on `ranks` of a cluster; 0 if it is slower even at a thousandth of the bandwidth, infinite if it is faster even
    at a thousand times. Both use the best of the merging rules, hierarchies and schemes in the cases `given`."""
    clusters = [_with_bandwidth(cluster, ranks, factor) for factor in FACTORS]
    own = density if COMPRESSORS[compressor].selects else 1.0
    differences = []
    for one in (LOSSLESS, compressor):
        cases = [case for faster in clusters for case in _cases(faster, ranks, one, [own], given)]
        names = [case.cluster.name for case in cases]
        differences.append(_lowest(simulate(cases, settings), names, [faster.name for faster in clusters]))
    found = _crossing(FACTORS, differences[1] - differences[0])
    return float("inf") if found == FACTORS[-1] else found * _slowest(cluster, ranks)


def _cases(
    cluster: Cluster, ranks: int, compressor: str, densities: Sequence[float], given: Sequence[Case]
) -> list[Case]:
    """Return all cases of one compressor with the rules, hierarchies, schemes and choices of the `given` cases."""
    axes = ("rule", "hierarchy", "scheme", "where_it_pays")
    found = [list(dict.fromkeys(getattr(case, name) for case in given)) for name in axes]
    return list(grid([cluster], [ranks], [compressor], densities, *found))


def _lowest(results: Sequence[Result], keys: Sequence[object], wanted: Sequence[object]) -> Array:
    """Return the shortest step for each of the `wanted` keys; `keys` has one key per result."""
    found: dict[object, float] = {}
    for key, one in zip(keys, results, strict=True):
        found[key] = min(found.get(key, np.inf), one.step_seconds)
    return np.array([found.get(key, np.inf) for key in wanted])


def _crossing(values: Sequence[float], differences: Array) -> float:
    """Return the point in the rising `values` up to which differences are below 0, interpolated over the logarithm; 0
    if the first difference is not below 0."""
    slower = np.flatnonzero(differences >= 0)
    if not slower.size:
        return float(values[-1])
    place = int(slower[0])
    if not place:
        return 0.0
    share = differences[place - 1] / (differences[place - 1] - differences[place])
    return float(values[place - 1] * (values[place] / values[place - 1]) ** share)


def _level(cluster: Cluster, ranks: int) -> str:
    return "in_node" if ranks <= cluster.ranks_per_node else "between_nodes"


def _slowest(cluster: Cluster, ranks: int) -> float:
    return float(getattr(cluster, _level(cluster, ranks)).bandwidth_bytes_per_second)


def _with_bandwidth(cluster: Cluster, ranks: int, factor: float) -> Cluster:
    """Return the cluster, renamed, with another bandwidth of the level over which its ranks communicate."""
    level = _level(cluster, ranks)
    link = replace(getattr(cluster, level), bandwidth_bytes_per_second=_slowest(cluster, ranks) * factor)
    return replace(cluster, name=f"{cluster.name} x {factor:.6g}", **{level: link})
