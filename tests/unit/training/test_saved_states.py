"""README's table beside the paper's Fig. 9: what was planned is what is planned, and by nodes a slice is held."""

import json

import pytest

from benchmarks.core.paths import ROOT
from benchmarks.training.plan_of_cell import OF_FIGURE, RANKS, RANKS_PER_NODE, WAYS, saved

FOUND = json.loads((ROOT / "results/reference/saved-states.json").read_text())


def test_all_models_were_planned_in_all_ways() -> None:
    assert (FOUND["ranks"], FOUND["ranks_per_node"]) == (RANKS, RANKS_PER_NODE) == (64, 8)
    assert [row["model"] for row in FOUND["rows"]] == [*OF_FIGURE]
    assert all([*row["saved"]] == [*WAYS] for row in FOUND["rows"])


def test_what_stands_there_is_what_is_planned_now() -> None:
    """Planned for VGG-19 alone, which has the fewest tensors of those of which each scheme saves something."""
    row = FOUND["rows"][1]
    assert row["model"] == "vgg19" and saved("vgg19") == row["saved"]


def test_by_nodes_seven_eighths_of_the_residuals_are_saved() -> None:
    """A residual is a fourth of the states with SGD's momentum, a fifth with Adam's two: all copies of the model."""
    for row in FOUND["rows"]:
        copies = 5 if row["model"].startswith(("bert", "gpt2")) else 4
        assert row["saved"]["baseline by nodes"] == pytest.approx(7 / 8 / copies, rel=0.01)
        assert max(row["saved"].values()) == row["saved"]["w+2d by nodes"]
