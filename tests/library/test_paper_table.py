"""What `plan` says of the paper's models: residual elements, and what is left of the model states."""

import pytest

from benchmarks.core.registry import MODELS
from resireduce.plan import plan
from resireduce.scheme import load
from tests.library.test_grouping import PAPER

# The optimizer, and the model states with w+2d in per cent of those with full residuals: (copies x T + R) / (copies x T
# + R0), where copies of all T parameters are parameters, gradients and the optimizer's states.
NORMALISED = {"resnet50": ("sgd", 85.1), "vgg19": ("sgd", 84.3), "bert-base": ("adamw", 86.4)}
COPIES = {"sgd": 3, "adamw": 4}


@pytest.mark.parametrize("name", NORMALISED)
def test_plan_is_the_papers_arithmetic(name: str) -> None:
    elements, with_residual, *_, saved_w, saved_2d = PAPER[name]
    optimizer, percentage = NORMALISED[name]
    planned = plan(load(MODELS[name]), optimizer=optimizer, scheme="w+2d", gradients="kept", world_size=1)
    assert planned["parameters"] == planned["gradients"] == 4 * elements
    assert planned["residuals"] == 4 * (with_residual - saved_w - saved_2d)
    counters = planned["optimizer_states"] - 4 * (COPIES[optimizer] - 2) * elements
    assert 0 <= counters <= 4 * 1000, "AdamW counts the steps of each tensor"
    assert planned["baseline_total"] - counters == 4 * (COPIES[optimizer] * elements + with_residual)
    assert round(100 * planned["total"] / planned["baseline_total"], 1) == percentage
    assert planned["normalised"] == planned["total"] / planned["baseline_total"]
