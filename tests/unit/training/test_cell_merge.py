"""A cell's merging: what it may be, what it is called, and what stands in its record."""

from pathlib import Path

import pytest

from benchmarks.core import scheme_options
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.training.build import build
from benchmarks.training.plan_of_cell import plan_of
from resireduce.checks import check_merge
from resireduce.comm.local import LocalCommunicator
from resireduce.errors import ConfigError
from resireduce.merging.rules import TIMED
from resireduce.scheme import COMPRESSORS, MERGES, build_compressor

PLAN = [["features.3.weight", "features.0.weight"], ["features.7.weight"]]


def test_names_of_rules_are_those_that_the_library_has() -> None:
    assert ("none", "one", "hybrid", *TIMED) == MERGES
    for name, listed in COMPRESSORS.items():
        made = build_compressor(name, 0.1)
        assert (made.has_rounds, made.rounds_merge) == (listed.in_rounds, listed.rounds_merge), name


def test_a_cell_that_merges_has_a_name_of_its_own_and_is_read_as_it_was_written() -> None:
    cells = [Cell(model="vgg-digits", merge=merge) for merge in ("none", "one", 4096, "mg-wfbp", PLAN, PLAN[:1])]
    assert len({cell.name for cell in cells}) == len(set(cells)) == len(cells)
    assert cells[0].name == Cell(model="vgg-digits").name and cells[2].name.endswith("merge-4096")
    for cell in cells:
        assert Cell.from_dict(cell.to_dict()) == cell
    assert cells[4].to_dict()["merge"] == PLAN


@pytest.mark.parametrize(
    ("merge", "expected"),
    [("one", ["one"]), (["none", 4096, "one"], ["none", 4096, "one"]), (PLAN, [PLAN]), ([PLAN, "one"], [PLAN, "one"])],
)
def test_a_list_compares_ways_and_lists_of_names_are_one(merge: object, expected: list[object]) -> None:
    cells = expand({"matrix": [{"model": "vgg-digits", "merge": merge}]})
    assert [scheme_options.thaw_merge(cell.merge) for cell in cells] == expected


@pytest.mark.parametrize("wrong", ["two", 0, True, 1.5, None, [], ["a"], [[]], [[1]]])
def test_what_merge_cannot_be(wrong: object) -> None:
    with pytest.raises(
        ConfigError, match=r"merge: .*(allowed: none|is not known; allowed|is not allowed; give none, )"
    ):
        Cell(model="vgg-digits", merge=wrong)


def test_payloads_of_rounds_are_not_merged_and_exchanges_in_two_phases_not_by_times() -> None:
    with pytest.raises(ConfigError, match=r"merge: 'one' is not allowed with compressor 'powersgd'.*allowed: none"):
        Cell(model="vgg-digits", compressor="powersgd", merge="one")
    for rule in TIMED:
        with pytest.raises(ConfigError, match=f"merge: '{rule}' is not allowed with .*no rule by time knows"):
            Cell(model="vgg-digits", compressor="block8-two-phase", merge=rule)
        with pytest.raises(ConfigError, match=f"merge: '{rule}' is not allowed with .*no rule by time knows"):
            check_merge(rule, build_compressor("block8-two-phase", 1.0), {})


def test_the_record_has_the_messages_and_training_is_the_same() -> None:
    def outcome(merge: object) -> tuple[float | None, list[list[str]]]:
        cell = Cell(model="vgg-digits", world_size=1, backend="local", steps=2, merge=merge)
        trainer = build(cell, LocalCommunicator(), None, Path("data"))
        trainer.train()
        found = trainer.result()
        return found.metric, found.messages

    (alone, nothing), (together, messages) = map(outcome, ("none", "one"))
    assert alone == together and nothing == []
    assert max(map(len, messages)) > 3


def test_the_plan_of_a_cell_knows_what_travels_together() -> None:
    cells = [Cell(model="vgg-digits", merge=merge, gradients="streamed") for merge in ("none", "one", "omgs")]
    alone, together, timed = map(plan_of, cells)
    assert alone["total"] == together["total"] and alone == timed, "before a rule has decided nothing is merged"
