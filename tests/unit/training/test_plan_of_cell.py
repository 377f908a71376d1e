"""A cell's hierarchy and merging: what they may be, what they change, and what is planned and recorded of them."""

from pathlib import Path

import pytest
import torch

from benchmarks.core import scheme_options
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.matrix import expand
from benchmarks.core.paths import ROOT
from benchmarks.training.build import build
from benchmarks.training.place import _sets, nodes_of
from benchmarks.training.plan_of_cell import OF_FIGURE, WAYS, plan_of, saved
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.base import Agreeing
from resireduce.errors import ConfigError
from resireduce.merging.rules import TIMED
from resireduce.planning.memory import measure_states
from resireduce.scheme import COMPRESSORS, MERGES, build_compressor
from tests.threads import LocalWorld

PAIRS = {"model": "vgg-digits", "world_size": 4, "hierarchy": "node", "ranks_per_node": 2}


def test_ranks_of_a_machine_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    pairs = [[0, 1], [2, 3]]
    assert nodes_of(Cell(model="vgg-digits", world_size=4)) == "flat"
    assert nodes_of(Cell(model="vgg-digits", world_size=4, hierarchy="node")) == pairs
    assert nodes_of(Cell(**PAIRS | {"ranks_per_node": 4})) == [[0, 1, 2, 3]]
    assert _sets(pairs, 4) == [[0, 1], [2, 3], [0, 2], [1, 3]]
    assert _sets([[0, 1]], 2) == [], "all ranks are a process set as it is"


@pytest.mark.parametrize("scheme", ["baseline", "w+2d"])
def test_the_plan_of_a_cell_is_what_it_holds(scheme: str) -> None:
    cell = Cell(**PAIRS, scheme=scheme, gradients="streamed", steps=1)

    def rank(communicator: Communicator) -> dict[str, int]:
        trainer = build(cell, communicator, None, Path("data"))
        batch = trainer.batch(next(trainer.indices()), 0)
        trainer.train_step(0, batch)
        return measure_states(trainer.optimizer).as_dict()

    planned = plan_of(cell)
    torch.manual_seed(0)
    for held in LocalWorld(4).run(rank):
        assert {name: planned[name] for name in held} == held
    flat = plan_of(Cell(model="vgg-digits", world_size=4, scheme=scheme))["residuals"]
    assert flat / 2 <= planned["residuals"] < 0.53 * flat, "2d has its column numbers on every rank"


def test_the_fullest_moment_is_as_planned() -> None:
    """Within 5 % of what was recorded: the gathered average of the largest layer weighs most in it."""
    rows = load_json(ROOT / "results/reference/two-levels.json")["rows"]
    models = ("resnet-digits", "vgg-digits", "bert-questions")
    recorded = {row["model"]: row for row in rows if (row["hierarchy"], row["density"]) == ("node", 0.01)}
    for model in models:
        planned = plan_of(Cell(**PAIRS | {"model": model, "density": 0.01, "scheme": "baseline"}))
        assert planned["peak_normalised"] == pytest.approx(recorded[model]["peak_normalised"], rel=0.05)


def test_the_states_that_readme_says_are_saved_are_planned_now_and_by_nodes_a_slice_is_held() -> None:
    """A residual is a fourth of the states with SGD's momentum, a fifth with Adam's two: all copies of the model."""
    rows = load_json(ROOT / "results/reference/saved-states.json")["rows"]
    assert [row["model"] for row in rows] == [*OF_FIGURE] and all([*row["saved"]] == [*WAYS] for row in rows)
    # VGG-19 has the fewest tensors of those models of which each scheme saves something.
    assert saved("vgg19") == next(row["saved"] for row in rows if row["model"] == "vgg19")
    for row in rows:
        copies = 5 if row["model"].startswith(("bert", "gpt2")) else 4
        assert row["saved"]["baseline by nodes"] == pytest.approx(7 / 8 / copies, rel=0.01)
        assert max(row["saved"].values()) == row["saved"]["w+2d by nodes"]


PLAN = [["features.3.weight", "features.0.weight"], ["features.7.weight"]]


def test_names_of_rules_are_those_that_the_library_has() -> None:
    assert ("none", "one", "hybrid", *TIMED) == MERGES
    for name, listed in COMPRESSORS.items():
        made = build_compressor(name, 0.1)
        in_rounds = isinstance(made, Agreeing)
        assert (in_rounds, in_rounds and made.merges) == (listed.in_rounds, listed.rounds_merge), name


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
