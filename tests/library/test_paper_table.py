"""What `plan` says of the paper's models: residual elements, and what is left of the model states."""

import pytest

from benchmarks.core.registry import MODELS
from resireduce.plan import plan
from resireduce.scheme import load
from tests.library.test_grouping import PAPER

# Model states in per cent of those with full residuals, for w, 2d and w+2d: (copies x T + R) / (copies x T + R0), where
# copies of all T parameters are parameters, gradients and the optimizer's states.
NORMALISED = {
    "resnet50": ("sgd", 85.1, 100.0, 85.1),
    "resnet50-imagenet": ("sgd", 86.0, 100.0, 86.0),
    "vgg19": ("sgd", 97.7, 86.6, 84.3),
    "bert-base": ("adamw", 89.6, 96.8, 86.4),
    "bert-large": ("adamw", 87.9, 98.6, 86.5),
    "gpt2-medium": ("adamw", 88.6, 97.8, 86.5),
    "gpt2-large": ("adamw", 87.8, 98.8, 86.6),
}
COPIES = {"sgd": 3, "adamw": 4}


@pytest.mark.parametrize("name", NORMALISED)
def test_what_the_page_says_follows_from_the_counts(name: str) -> None:
    elements, with_residual, *_, saved_w, saved_2d = PAPER[name]
    optimizer, *percentages = NORMALISED[name]
    whole = COPIES[optimizer] * elements + with_residual
    assert [round(100 * (1 - saved / whole), 1) for saved in (saved_w, saved_2d, saved_w + saved_2d)] == percentages


@pytest.mark.parametrize("name", ["resnet50", "vgg19", "bert-base"])
def test_plan_is_the_papers_arithmetic(name: str) -> None:
    elements, with_residual, *_, saved_w, saved_2d = PAPER[name]
    optimizer, *_, percentage = NORMALISED[name]
    planned = plan(load(MODELS[name]), optimizer=optimizer, scheme="w+2d", gradients="kept", world_size=1)
    assert planned["parameters"] == planned["gradients"] == 4 * elements
    assert planned["residuals"] == 4 * (with_residual - saved_w - saved_2d)
    counters = planned["optimizer_states"] - 4 * (COPIES[optimizer] - 2) * elements
    assert 0 <= counters <= 4 * 1000, "AdamW counts the steps of each tensor"
    assert planned["baseline_total"] - counters == 4 * (COPIES[optimizer] * elements + with_residual)
    assert round(100 * planned["total"] / planned["baseline_total"], 1) == percentage
    assert planned["normalised"] == planned["total"] / planned["baseline_total"]
