"""A cell's merging: what it may be, what it is called, and what stands in its record."""

from pathlib import Path

import pytest

from benchmarks.core import scheme_options
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.training.build import build
from benchmarks.training.plan_of_cell import plan_of
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


def test_a_list_compares_ways_each_with_a_name_of_its_own_and_lists_of_names_are_one() -> None:
    ways = ["none", "one", 4096, "mg-wfbp", PLAN, PLAN[:1]]
    cells = expand({"matrix": [{"model": "vgg-digits", "merge": ways}]})
    assert [scheme_options.thaw_merge(cell.merge) for cell in cells] == ways
    assert len({cell.name for cell in cells}) == len(set(cells)) == len(cells)
    assert cells[0].name == Cell(model="vgg-digits").name
    assert [Cell.from_dict(cell.to_dict()) for cell in cells] == cells
    assert expand({"matrix": [{"model": "vgg-digits", "merge": PLAN}]}) == [cells[4]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"merge": "two"}, "is not known; allowed"),
        ({"merge": True}, "is not allowed; give none, "),
        ({"merge": [[1]]}, "is not allowed; give none, "),
        ({"compressor": "powersgd", "merge": "one"}, "'one' is not allowed with compressor 'powersgd'.*allowed: none"),
        ({"compressor": "block8-two-phase", "merge": "omgs"}, "'omgs' is not allowed with .*no rule by time knows"),
    ],
)
def test_what_merge_cannot_be(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^merge: .*{said}"):
        Cell(model="vgg-digits", **options)


def test_the_record_has_the_messages_and_training_and_what_is_planned_are_the_same() -> None:
    def outcome(merge: object) -> tuple[float | None, list[list[str]], int]:
        cell = Cell(model="vgg-digits", world_size=1, backend="local", steps=2, merge=merge)
        trainer = build(cell, LocalCommunicator(), None, Path("data"))
        trainer.train()
        found = trainer.result()
        return found.metric, found.messages, plan_of(cell)["total"]

    (alone, nothing, planned), (together, messages, also) = map(outcome, ("none", "one"))
    assert (alone, planned) == (together, also) and nothing == []
    assert max(map(len, messages)) > 3
