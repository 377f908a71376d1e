"""The memory of a step over time, as a record has it: no moment is fuller than the record says, and one is as full."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import BANDS, POINTS, moments_problem, pack_moments, thinned, unpack_moments
from benchmarks.core.record import CellResult, RecordError
from tests.records import make_result

MOMENT = st.tuples(*[st.integers(0, 2**40)] * len(BANDS))


@given(st.lists(MOMENT, min_size=1, max_size=3 * POINTS))
def test_thinned_moments_are_some_of_all_in_their_order_and_the_fullest_is_among_them(moments: list) -> None:
    few = thinned(moments)
    places = iter(moments)
    assert all(any(moment == one for one in places) for moment in few), "in their order"
    assert 1 <= len(few) <= POINTS and max(map(sum, few)) == max(map(sum, moments))
    if len(moments) <= POINTS:
        assert few == moments, "few enough are all there"


@given(st.lists(MOMENT, min_size=1, max_size=5))
def test_packed_moments_come_back(moments: list) -> None:
    packed = {"rank": 0, **json.loads(json.dumps(pack_moments(moments)))}
    assert packed["changes"] == len(moments)
    assert moments_problem(packed, max(map(sum, moments))) is None
    found = unpack_moments(packed)
    assert found == moments or (len(set(moments)) == 1 and found == moments[:1]), "what never changes is one moment"


def record_of(**change: object) -> CellResult:
    """A record in whose step parameters, optimizer states and residuals stay, and a gradient and a message come."""
    plain = make_result(Cell(model="gpt2-bytes", gradients="streamed")).to_dict()
    held = [plain[f"{name}_bytes"] for name in ("parameters", "optimizer_states", "residuals")]
    moments = [(*held, 0, 0), (*held, plain["in_flight_bytes"] - 8, 8), (*held, 0, 8)]
    return CellResult.from_dict(plain | {"moments": {"rank": 0, **pack_moments(moments)}} | change)


def test_a_record_has_moments_and_one_from_before_is_read_without() -> None:
    result = record_of()
    again = CellResult.from_dict(json.loads(json.dumps(result.to_dict())))
    moments = unpack_moments(again.moments)
    assert [sum(moment) for moment in moments] == [result.total_bytes, result.peak_states_bytes, result.total_bytes + 8]
    old = result.to_dict()
    del old["moments"]
    assert CellResult.from_dict(old).moments == {} and unpack_moments({}) == []


def test_a_fullest_moment_that_its_step_does_not_have_is_refused() -> None:
    lower = record_of().peak_states_bytes - 4  # type: ignore[operator]
    with pytest.raises(RecordError, match=r"^moments: the fullest holds [0-9]+ bytes, not peak_states_bytes, [0-9]+$"):
        record_of(peak_states_bytes=lower)


def damaged(key: str, value: object) -> dict[str, object]:
    packed = copy.deepcopy(record_of().moments)
    (packed if key in packed else packed["bands"])[key] = value
    return packed


@pytest.mark.parametrize(
    "moments",
    [
        lambda: [1],
        lambda: {"rank": 0},
        lambda: damaged("changes", "many"),
        lambda: damaged("messages", [1.5, 0, 0]),
        lambda: damaged("bands", {name: [0] * (POINTS + 1) for name in BANDS}),
    ],
)
def test_damaged_moments_are_refused_in_one_line(moments) -> None:
    with pytest.raises(RecordError, match=r"^moments: (damaged; |.* is not a mapping)[^\n]*$"):
        record_of(moments=moments())
