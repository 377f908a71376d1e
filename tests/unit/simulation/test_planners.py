"""Espresso's and HiPress's plans, beside the definitions in plain Python and all plans of up to eight tensors."""

from itertools import product

import numpy as np
import pytest

from benchmarks.simulation import results
from benchmarks.simulation.cluster import paths
from benchmarks.simulation.results import Rows, Settings, espresso, hipress, mixed, rows_of, simulate, timed
from benchmarks.simulation.wire import Case, grid, works
from tests.simulated import FAST, make_cluster, make_layers, make_settings, walked

CLUSTERS = [make_cluster(ranks_per_node=1), make_cluster(ranks_per_node=2), make_cluster(bandwidth=1e8)]
SEEDS = range(8)


def case_of(seed: int, rule: str, most: int = 8) -> tuple[Case, Settings]:
    """Up to `most` tensors of 10,000 to 16 million elements."""
    own = np.random.default_rng(seed)
    sizes = [(1000, int(own.choice([10, 100, 1000, 4000, 16_000]))) for _ in range(int(own.integers(2, most + 1)))]
    cluster, compressor = CLUSTERS[seed % len(CLUSTERS)], str(own.choice(["topk", "qsgd", "gaussian"]))
    hierarchy = "node" if cluster.ranks_per_node > 1 else "flat"
    case = Case(cluster, cluster.ranks, compressor, 0.01, "baseline", rule, hierarchy)
    return case, make_settings(make_layers(sizes), 0.05)


def step_of(rows: Rows) -> float:
    alone = np.ones(rows.backward.shape, dtype=bool)
    step = float(timed(rows, alone).step[0])
    assert step == pytest.approx(walked(rows, alone[0], False))
    return step


def options_of(case: Case, given: Settings) -> Rows:
    """Each tensor whole, in 16 bits, compressed between nodes and, where there are two levels, on both."""
    kinds = [("none", case.hierarchy), ("fp16", case.hierarchy), (case.compressor, case.hierarchy)]
    kinds += [(case.compressor, "flat")] * (case.hierarchy == "node")
    shares = [case.density if name == case.compressor else 1.0 for name, _ in kinds]
    tried = [
        Case(case.cluster, case.ranks, name, share, hierarchy=levels)
        for (name, levels), share in zip(kinds, shares, strict=True)
    ]
    return rows_of(tried, given, works(tried, given.layers, given.micro))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mixed_row_has_each_tensor_as_in_its_option(seed: int) -> None:
    case, given = case_of(seed, "espresso")
    options = options_of(case, given)
    count = options.backward.shape[1]
    for number in range(len(options.forward)):
        alone = mixed(options, np.full((1, count), number))
        own = timed(options, np.ones(options.backward.shape, dtype=bool))
        assert step_of(alone) == pytest.approx(own.step[number])


@pytest.mark.parametrize("seed", SEEDS)
def test_espresso_is_its_search_and_lies_between_the_best_of_all_plans_and_none(seed: int) -> None:
    case, given = case_of(seed, "espresso")
    options, elements = options_of(case, given), given.layers.elements
    count = len(elements)

    def step(plan: list[int]) -> float:
        return step_of(mixed(options, np.array([plan])))

    def paused(plan: list[int]) -> int:
        times = timed(mixed(options, np.array([plan])), np.ones((1, count), dtype=bool))
        begun, sent = times.begun[0], times.sent[0]
        return max(place for place in range(count) if not place or begun[place] > sent[place - 1] + 1e-9)

    plan = [0] * count
    start = paused(plan)
    plan = [int(place >= start and elements[place] > 2**17) for place in range(count)]
    start = paused(plan)
    for place in sorted(range(start, count), key=lambda place: (elements[place], place), reverse=True):
        if elements[place] > 2**20:
            trial = [*plan]
            trial[place] = len(options.forward) - 1 if elements[place] > 2**23 else 2
            plan = min(plan, trial, key=step)
    found = step_of(espresso(case, given))
    assert found == pytest.approx(step(plan))
    every = np.array(list(product(range(len(options.forward)), repeat=count)))
    best = timed(mixed(options, every), np.ones(every.shape, dtype=bool)).step.min()
    assert best * (1 - 1e-9) <= found <= step([0] * count) * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_hipress_takes_the_least_of_all_plans_of_each_tensor_by_itself(seed: int) -> None:
    case, given = case_of(seed, "hipress")
    (work,) = works([case], given.layers, ()).values()
    place, found = paths(case.cluster, case.ranks, case.hierarchy), hipress(case, given)
    nodes, whole = place.peers, 4 * given.layers.elements
    for tensor, elements in enumerate(given.layers.elements):
        times = {}
        for parts in range(1, nodes + 1):
            send = [
                2 * (place.gather.latency / (nodes - 1) + nbytes / parts * place.gather.per_byte)
                for nbytes in (whole[tensor], work.payload[tensor])
            ]
            encode = float(work.curve(np.array([elements / parts]))[0])
            read = work.payload[tensor] + 8 * work.touched[tensor]
            decode = FAST.launch_seconds + read / parts / FAST.bytes_per_second
            encodings, decodings = min(parts + 1, nodes), min(nodes - 1 + parts, 2 * nodes - 2)
            times[parts, False] = send[0]
            times[parts, True] = send[1] + encodings * encode + decodings * decode
        (_, is_lossy), least = min(times.items(), key=lambda item: (item[1], item[0][1]))
        assert found.transfer[0, tensor] == pytest.approx(least)
        assert found.payload[0, tensor] == (work.payload[tensor] if is_lossy else whole[tensor])


def test_a_plan_is_no_slower_than_none_and_needs_a_compressor_and_the_levels_there_are() -> None:
    cluster = make_cluster(bandwidth=1e7, ranks_per_node=2)
    names, rules = ["none", "fp16", "topk", "powersgd"], ["none", *results.PLANNERS]
    cases = list(grid([cluster], [8], names, [0.01], rules))
    planned = [one for one in cases if one.rule in results.PLANNERS]
    assert {(one.compressor, one.hierarchy) for one in planned} == {("topk", "node")} and len(planned) == 2
    steps = simulate(cases, make_settings(make_layers([(1000, 3000)] * 4)))
    plain = min(one.step_seconds for one in steps if one.case.compressor == "none")
    assert all(one.step_seconds < plain and one.messages == 4 for one in steps if one.case.rule in results.PLANNERS)
