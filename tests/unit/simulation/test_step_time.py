"""The time of a simulated step: beside a walk through its events, closed forms, bounds and all groupings."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks.simulation.results import Result, Rows, Settings, Timed, fastest_first, merged, rows_of, simulate, timed
from benchmarks.simulation.rules import RULES
from benchmarks.simulation.wire import Case, Curve, works
from tests.simulated import EXACT, drawn_layers, make_cluster, make_layers, make_settings, walked

SHARED = [name for name, rule in RULES.items() if not rule.in_halves]


def rows_for(case: Case, with_settings: Settings) -> Rows:
    return rows_of([case], with_settings, works([case], with_settings.layers, with_settings.micro))


def times_of(rows: Rows, rule: str) -> Timed:
    return timed(rows, merged(rows, RULES[rule]), RULES[rule])


def every_grouping(count: int) -> Iterator[np.ndarray]:
    for cuts in product((False, True), repeat=count - 1):
        yield np.array([[*cuts, True]])


@pytest.mark.parametrize("rule", SHARED)
@pytest.mark.parametrize("hierarchy", ["flat", "node"])
@pytest.mark.parametrize("compressor", ["none", "topk", "fp16", "dgc"])
def test_a_step_is_the_walk_through_its_events(rule: str, hierarchy: str, compressor: str) -> None:
    kinds = ["dense" if number % 3 == 0 else "grouped" for number in range(14)]
    for seed, scheme in ((1, "baseline"), (2, "w+2d")):
        layers = replace(drawn_layers(seed, 14), kinds=tuple(kinds))
        given_settings = make_settings(layers)
        case = Case(make_cluster(ranks_per_node=2, jitter_seconds=1e-3), 8, compressor, 0.01, scheme, rule, hierarchy)
        rows = rows_for(case, given_settings)
        ends = merged(rows, RULES[rule])
        expected = walked(rows, ends[0], RULES[rule].compresses_messages, RULES[rule].cycle_seconds)
        assert simulate([case], given_settings)[0].step_seconds == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rule", ["none", "one", "size", "mg-wfbp"])
@pytest.mark.parametrize("hierarchy", ["flat", "node"])
def test_so_is_one_of_which_a_testbed_has_measured_more(rule: str, hierarchy: str) -> None:
    """Shared processors, messages that trail, gathers that are no sums, and a curve in place of a line."""
    own, given_settings = np.random.default_rng(4), make_settings(drawn_layers(3, 14))
    case = Case(make_cluster(ranks_per_node=2), 8, "topk", 0.01, rule=rule, hierarchy=hierarchy)
    rows = rows_for(case, given_settings)
    each = {name: own.random((1, 14)) * 1e-3 for name in ("busy_latency", "busy_transfer", "in_node_busy", "beside")}
    once = {name: own.random(1) * 1e-3 for name in ("trailing", "settle", "gather_latency")}
    curve = Curve.through([100, 1000, 10_000], [1e-3, 2e-3, 9e-3])
    rows = replace(rows, **each, **once, gather_per_byte=own.random(1) * 1e-9, sending=curve)
    ends = merged(rows, RULES[rule])
    whole = RULES[rule].compresses_messages
    expected = walked(rows, ends[0], whole)
    assert float(timed(rows, ends, RULES[rule]).step[0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [1, 4, 9, 12])
def test_the_optimal_messages_are_the_best_of_all_groupings(count: int) -> None:
    given_settings = make_settings(drawn_layers(count, count))
    for latency, bandwidth in ((1e-3, 1e9), (1e-4, 2e8), (1e-2, 1e10)):
        rows = rows_for(Case(make_cluster(latency, bandwidth, device=EXACT), 4), given_settings)
        best = min(float(timed(rows, ends).step[0]) for ends in every_grouping(count))
        assert float(timed(rows, merged(rows, RULES["optimal"])).step[0]) == pytest.approx(best, rel=1e-12)


def test_one_message_is_a_sum() -> None:
    layers = make_layers([(300, 400), (50, 1000), (20, 600)])
    case = Case(make_cluster(latency=2e-4, bandwidth=5e8, device=EXACT), 4, rule="one")
    found = simulate([case], make_settings(layers, compute_seconds=0.06))[0]
    nbytes = 4 * (300 * 400 + 50 * 1000 + 20 * 600)
    ring = 2 * 3 * 2e-4 + 2 * 3 / 4 * nbytes / 5e8
    assert found.step_seconds == pytest.approx(0.06 + ring, rel=1e-12)
    assert (found.messages, found.sent_bytes) == (1, nbytes)


def test_halves_take_no_less_than_what_each_stream_must_do() -> None:
    given_settings = make_settings(drawn_layers(5, 20))
    for latency, bandwidth in ((1e-5, 1e10), (1e-3, 1e8)):
        rows = rows_for(Case(make_cluster(latency, bandwidth), 4, rule="dear"), given_settings)
        times, forward = times_of(rows, "dear"), float(rows.forward[0])
        sending = float((times.sent - times.begun)[times.ends].sum())
        least = max(forward, sending) + max(float(rows.backward.sum()), sending)
        assert float(times.step[0]) >= least * (1 - 1e-12)


def test_halves_hide_behind_both_passes() -> None:
    """A link that is as busy as both passes together: the one half fits into the one, the other into the other."""
    layers = make_layers([(5000, 5000)] * 30)
    passes = 0.1
    both = 2 * 3 / 4 * 4 * 30 * 5000**2
    case = Case(make_cluster(0.0, both / passes, device=EXACT), 4, rule="dear")
    whole = simulate([replace(case, rule="none"), case], make_settings(layers, compute_seconds=passes))
    assert whole[0].exposed_seconds > 0.3 * passes, "the whole of it cannot hide behind the backward pass"
    assert whole[1].step_seconds < whole[0].step_seconds


def test_horovod_sends_at_the_ticks_of_its_cycle() -> None:
    given_settings = make_settings(drawn_layers(3, 12))
    times = times_of(rows_for(Case(make_cluster(1e-6, 1e12), 4, rule="horovod"), given_settings), "horovod")
    starts = times.begun[times.ends]
    assert np.allclose(starts / 0.001, np.round(starts / 0.001), atol=1e-6)


def test_the_latest_rank_is_late_by_the_mean_of_the_largest_delay() -> None:
    own, ranks = np.random.default_rng(0), 16
    drawn = own.exponential(1e-3, (40_000, ranks)).max(axis=1).mean()
    case = Case(make_cluster(nodes=ranks, jitter_seconds=1e-3), ranks)
    assert float(rows_for(case, make_settings(drawn_layers(0, 3))).late[0]) == pytest.approx(drawn, rel=0.02)


def test_the_same_cases_in_any_company_have_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    given_settings = make_settings(drawn_layers(7, 9))
    slow, fast = make_cluster(1e-3, 1e8, ranks_per_node=2), make_cluster(1e-5, 1e10, ranks_per_node=2)
    cases = [
        Case(cluster, 8, compressor, 0.01, "baseline", rule, hierarchy)
        for cluster, compressor, rule, hierarchy in product((slow, fast), ("none", "topk"), SHARED, ("flat", "node"))
    ]
    together = simulate(cases, given_settings)
    monkeypatch.setattr("benchmarks.simulation.results.NUMBERS_AT_ONCE", 9)
    alone = simulate(cases, given_settings)
    assert [one.case for one in together] == cases
    assert [one.step_seconds for one in together] == pytest.approx([one.step_seconds for one in alone], rel=1e-12)


def test_of_steps_as_fast_the_one_with_the_fewest_messages_comes_first() -> None:
    one = Result(Case(make_cluster(), 4), 1.0, 0.1, messages=5, sent_bytes=1.0, basis="")
    fewer, faster = replace(one, step_seconds=1.0 + 1e-9, messages=2), replace(one, step_seconds=0.9, messages=9)
    assert fastest_first([one, fewer, faster]) == [faster, fewer, one]
