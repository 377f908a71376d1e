"""Merging rules, beside each rule's definition written anew in plain Python, and beside all groupings there are."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise, product

import numpy as np
import pytest

from benchmarks.simulation.rules import RULES, dear, horovod, size
from resireduce.merging.rules import Arrivals, messages_of

SIGMA = 2.19e-10
"""Seconds of OMGS-SGD's cost of compression, sigma x n x log2 n."""
Groups = list[range]


def compress(elements: np.ndarray) -> np.ndarray:
    return SIGMA * elements * np.log2(np.maximum(elements, 1.0))


def make(seed: int, count: int, latency: float | None = None, per_byte: float | None = None) -> Arrivals:
    """Tensors of three orders of magnitude, a link and a backward pass that are drawn."""
    own = np.random.default_rng(seed)
    elements = 10 ** own.uniform(3, 6, count)
    backward = elements * 10 ** own.uniform(-9, -7) + 10 ** own.uniform(-5, -3, count)
    latency = 10 ** own.uniform(-5, -2) if latency is None else latency
    per_byte = 10 ** own.uniform(-10, -7) if per_byte is None else per_byte
    nbytes = 4 * elements
    return Arrivals(
        np.cumsum(backward + compress(elements)),
        per_byte * nbytes,
        np.full(count, latency),
        nbytes,
        backward=backward,
        elements=elements,
        compress=compress,
    )


def finish(arrivals: Arrivals, groups: Groups) -> float:
    """When the last message has come, by the recurrence of the definition."""
    free = 0.0
    for group in groups:
        free = max(free, arrivals.ready[group[-1]])
        free += max(arrivals.latency[group.start : group.stop]) + math.fsum(arrivals.transfer[group.start : group.stop])
    return free


def finish_merged_first(arrivals: Arrivals, groups: Groups) -> float:
    """The same where a message is compressed as one tensor, in the backward pass."""
    computed = free = 0.0
    for group in groups:
        inside = slice(group.start, group.stop)
        elements = np.array([arrivals.elements[inside].sum()])
        computed += arrivals.backward[inside].sum() + compress(elements)[0]
        free = max(free, computed) + arrivals.latency[inside].max() + arrivals.transfer[inside].sum()
    return free


def every_grouping(count: int) -> Iterator[Groups]:
    for cuts in product((False, True), repeat=count - 1):
        stops = [place + 1 for place, cut in enumerate(cuts) if cut] + [count]
        yield [range(start, stop) for start, stop in pairwise([0, *stops])]


def groups_of(name: str, arrivals: Arrivals) -> Groups:
    return messages_of(RULES[name].function(arrivals))


# --- each rule's definition, one tensor after the other ---


def greedy(arrivals: Arrivals, joins: Callable[[range, float, int], bool]) -> Groups:
    """`joins` is told of the message, of when the link is free for it, and which tensor is next."""
    groups, free, start = [], 0.0, 0
    for place in range(len(arrivals.ready)):
        group = range(start, place + 1)
        if place + 1 == len(arrivals.ready) or not joins(group, free, place + 1):
            free = finish_from(arrivals, group, free)
            groups.append(group)
            start = place + 1
    return groups


def finish_from(arrivals: Arrivals, group: range, free: float) -> float:
    inside = slice(group.start, group.stop)
    return max(free, arrivals.ready[group[-1]]) + max(arrivals.latency[inside]) + math.fsum(arrivals.transfer[inside])


def mg_wfbp_by_definition(arrivals: Arrivals) -> Groups:
    """Shi et al., INFOCOM 2019: l joins l - 1 if it would still be under way then, and had to wait, or waits little."""

    def joins(group: range, free: float, following: int) -> bool:
        start, ready = max(free, arrivals.ready[group[-1]]), arrivals.ready[following]
        under_way = ready < finish_from(arrivals, group, free)
        return under_way and (start > ready or ready - start < max(arrivals.latency[group.start : group.stop]))

    return greedy(arrivals, joins)


def omgs_by_definition(arrivals: Arrivals) -> Groups:
    """Shi et al., INFOCOM 2020: l joins l - 1 iff t_w < t_save, with t_s of all that is merged, and so on."""
    p, b = list(arrivals.elements), list(arrivals.backward)
    groups: Groups = []
    ts = lambda n: SIGMA * n * math.log2(n)  # noqa: E731
    free = ended = 0.0
    held, computed, start = 0.0, 0.0, 0
    for place in range(len(p)):
        held, computed = held + p[place], computed + b[place]
        e = ended + computed + ts(held)
        s = max(e, free)
        inside = slice(start, place + 1)
        if place + 1 < len(p):
            waits = b[place + 1] + ts(held + p[place + 1]) - ts(held) - ts(p[place + 1]) - (s - e)
            if waits < arrivals.latency[0]:
                continue
        free, ended = s + arrivals.latency[0] + arrivals.transfer[inside].sum(), e
        groups.append(range(start, place + 1))
        held, computed, start = 0.0, 0.0, place + 1
    return groups


@pytest.mark.parametrize("seed", range(60))
def test_a_rule_is_its_definition(seed: int) -> None:
    arrivals = make(seed, 1 + seed % 30)
    count = len(arrivals.ready)
    assert groups_of("none", arrivals) == [range(place, place + 1) for place in range(count)]
    assert groups_of("one", arrivals) == [range(count)]
    assert groups_of("mg-wfbp", arrivals) == mg_wfbp_by_definition(arrivals)
    assert groups_of("omgs", arrivals) == omgs_by_definition(arrivals)
    filled = greedy(arrivals, lambda group, free, following: bool(arrivals.ready[following] <= free))
    assert groups_of("rgmerge-style", arrivals) == filled


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_a_size_are_as_full_as_they_can_be(seed: int) -> None:
    arrivals = make(seed, 25)
    limit = 5e6
    groups = messages_of(size(arrivals, limit))
    for group, following in pairwise(groups):
        held = arrivals.nbytes[group.start : group.stop].sum()
        assert held <= limit or len(group) == 1
        assert held + arrivals.nbytes[following.start] > limit
    reverse = Arrivals(
        np.zeros(25), *(values[::-1] for values in (arrivals.transfer, arrivals.latency, arrivals.nbytes))
    )
    forward = [range(25 - group.stop, 25 - group.start) for group in reversed(messages_of(dear(arrivals, limit)))]
    for group, following in pairwise(forward):
        held = reverse.nbytes[group.start : group.stop].sum()
        assert (held < limit or len(group) == 1) and held + reverse.nbytes[following.start] >= limit


def test_a_message_may_hold_its_limit_and_one_of_dear_is_closed_before_it() -> None:
    """DistributedDataParallel fills a bucket up to its size; DeAR begins another one where it would be reached."""
    four = np.ones(4)
    arrivals = Arrivals(np.cumsum(four), four, four, 10 * four)
    assert messages_of(size(arrivals, limit_bytes=20)) == [range(2), range(2, 4)]
    assert messages_of(dear(arrivals, limit_bytes=20)) == [range(1), range(1, 2), range(2, 3), range(3, 4)]


def test_what_is_ready_when_the_link_is_leaves_together() -> None:
    ready = np.array([0.0, 0.0, 0.5, 2.0, 2.1])
    arrivals = Arrivals(ready, np.ones(5), np.zeros(5), np.ones(5))
    assert groups_of("rgmerge-style", arrivals) == [range(2), range(2, 4), range(4, 5)], "the first are sent until 2"


def test_omgs_does_not_wait_for_a_latency_that_is_not_saved() -> None:
    """A tensor that is sent without a latency of its own saves none by joining one that has it, or that joins it."""
    two = np.ones(2)
    for latency in (np.array([2.0, 0.0]), np.array([0.0, 2.0])):
        arrivals = Arrivals(np.cumsum(two), two, latency, two, backward=two, elements=two, compress=np.zeros_like)
        assert groups_of("omgs", arrivals) == [range(1), range(1, 2)]


def test_horovod_fuses_what_is_ready_in_one_cycle_up_to_its_buffer() -> None:
    ready = np.array([0.0002, 0.0009, 0.0011, 0.0019, 0.0020, 0.0041])
    arrivals = Arrivals(ready, ready * 0, ready * 0, np.array([10.0, 10, 10, 10, 10, 10]))
    assert messages_of(horovod(arrivals)) == [range(2), range(2, 5), range(5, 6)]
    assert messages_of(horovod(arrivals, limit_bytes=20)) == [range(2), range(2, 4), range(4, 5), range(5, 6)]
    assert messages_of(horovod(arrivals, cycle_seconds=1.0)) == [range(6)]


# --- beside all groupings ---


@pytest.mark.parametrize("seed", range(33))
def test_the_optimum_is_the_best_of_all_groupings(seed: int) -> None:
    arrivals = make(seed, 2 + seed % 11)
    best = min(finish(arrivals, groups) for groups in every_grouping(len(arrivals.ready)))
    assert finish(arrivals, groups_of("optimal", arrivals)) == pytest.approx(best, rel=1e-12)
    for name in ("none", "one", "size", "mg-wfbp", "rgmerge-style"):
        assert finish(arrivals, groups_of(name, arrivals)) >= best * (1 - 1e-12)


def test_of_groupings_as_good_the_optimum_has_the_fewest_messages() -> None:
    free = Arrivals(np.zeros(3), np.ones(3), np.zeros(3), np.ones(3))
    assert {finish(free, groups) for groups in every_grouping(3)} == {3.0}
    assert groups_of("optimal", free) == [range(3)]


def test_the_optimum_with_latencies_that_differ() -> None:
    arrivals = make(3, 9)
    some = Arrivals(arrivals.ready, arrivals.transfer, arrivals.latency * (np.arange(9) % 3 > 0), arrivals.nbytes)
    best = min(finish(some, groups) for groups in every_grouping(9))
    assert finish(some, groups_of("optimal", some)) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_all_tensors_are_sent_once_in_order_and_cases_do_not_mix(name: str, count: int) -> None:
    cases = [make(seed, count) for seed in range(4)]
    alone = [RULES[name].function(case) for case in cases]
    for ends in alone:
        assert [place for group in messages_of(ends) for place in group] == list(range(count))
    fields = ("ready", "transfer", "latency", "nbytes", "backward", "elements")
    together = Arrivals(*(np.stack([getattr(case, field) for case in cases]) for field in fields), compress=compress)
    assert np.array_equal(RULES[name].function(together), np.stack(alone))


# --- how good they are ---


def slower_than_both(name: str, cost: Callable[[Arrivals, Groups], float]) -> list[float]:
    """Ratios to the better of none and one message, in those of random cases in which a rule loses to it."""
    found = []
    for seed in range(400):
        arrivals = make(seed, 2 + seed % 40)
        better = min(cost(arrivals, groups_of(other, arrivals)) for other in ("none", "one"))
        ratio = cost(arrivals, groups_of(name, arrivals)) / better
        found += [ratio] if ratio > 1 + 1e-9 else []
    return found


def test_mg_wfbp_never_loses_to_none_or_one_message_and_the_optimum_to_nothing() -> None:
    assert slower_than_both("mg-wfbp", finish) == []
    assert slower_than_both("optimal", finish) == []


def test_mg_wfbp_is_not_the_optimum_though() -> None:
    arrivals = Arrivals(np.array([1.0, 4.0, 8.0]), np.array([4.0, 1.0, 1.0]), np.full(3, 4.0), np.ones(3))
    assert groups_of("mg-wfbp", arrivals) == [range(2), range(2, 3)], "3 s to wait is less than the latency of 4 s"
    assert finish(arrivals, [range(2), range(2, 3)]) == 18.0, "sent from 4 to 13, and from then to 18"
    assert groups_of("optimal", arrivals) == [range(1), range(1, 3)]
    assert finish(arrivals, [range(1), range(1, 3)]) == 15.0, "sent from 1 to 9, and from then to 15"


def test_omgs_loses_to_none_where_it_overlooks_the_compression_of_what_it_waits_for() -> None:
    """What it waits for counts the backward pass of the next tensor, and what is longer because both are one: here
    nothing, as compression takes a second an element. But the next tensor's own compression must be waited for too."""
    two = np.array([1.0, 1.0])
    arrivals = Arrivals(4 * np.cumsum(two), 4 * two, 2 * two, two, backward=two, elements=3 * two, compress=lambda n: n)
    assert groups_of("omgs", arrivals) == [range(2)], "1 s to wait for is less than the latency of 2 s"
    assert finish(arrivals, [range(1), range(1, 2)]) == 16.0, "sent from 4 to 10, and from then to 16"
    assert finish(arrivals, [range(2)]) == 18.0, "backward 2, compression 6, latency 2, transfer 8"


def test_how_often_and_how_much_omgs_loses() -> None:
    lost = slower_than_both("omgs", finish_merged_first)
    assert 0 < len(lost) < 120 and max(lost) < 1.1
