"""What `plan` says of slices: what they save, what they cost, and which are worth it."""

import json
from dataclasses import replace

import pytest
from torch import Tensor, nn

from resireduce.__main__ import main
from resireduce.plan import plan
from resireduce.planning.slice_choice import SliceChoice, advisable, slice_choices


class Layers(nn.Sequential):
    """One layer of 1,024 rows of 128, and one of 128 of 1,024."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128))


ROWS = 64 * 128 * 4
"""Bytes of a slice: 64 rows of the first weight, 8 of the second."""


@pytest.mark.parametrize(
    ("options", "times", "again"),
    [
        ({}, 1, 0.0),
        ({"residual_dtype": "int8"}, 2, 1.0),
        ({"scheme": "2d", "groups": {"specific": ["0.weight", "2.weight"]}}, 3, 2.0),
    ],
)
def test_the_price_is_each_slice_of_averages_and_of_gradients_as_often_as_these_are_made(
    options: dict[str, object], times: int, again: float
) -> None:
    given = {"scheme": "baseline", **options}
    price = plan(Layers, slices=ROWS, **given)["slice_price"]  # type: ignore[arg-type]
    assert price["slices"] == 2 * 16 * (1 + times), "16 slices of each of two weights"
    weights = 2 * 128 * 1024
    assert price["made_again"] == pytest.approx(again * weights / (weights + 1024 + 128))
    assert "slice_price" not in plan(Layers, **given)  # type: ignore[arg-type]


class Halved(nn.Linear):
    """A layer of somebody's own, whose gradient torch makes whole."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight / 2, self.bias)


class OwnLayers(nn.Sequential):
    """As large as `Layers`."""

    def __init__(self) -> None:
        super().__init__(Halved(128, 1024), nn.ReLU(), Halved(1024, 128))


def test_of_gradients_that_are_whole_averages_alone_are_in_slices() -> None:
    assert plan(OwnLayers, slices=ROWS, scheme="baseline")["slice_price"] == {"slices": 2 * 16, "made_again": 0.0}


def test_a_model_of_which_no_slice_is_allowed_has_choices_too() -> None:
    """A sixteenth of its bytes is less than the smallest slice that can be asked for."""
    sizes = [one.slices for one in slice_choices(lambda: nn.Linear(20, 20), scheme="baseline")]
    assert sizes == [False, 1024, True]


def test_what_choices_save_is_the_difference_of_plans() -> None:
    whole = plan(Layers, scheme="baseline")
    first, given, shares = slice_choices(Layers, slices=ROWS, scheme="baseline")
    assert (first.slices, first.saved, first.count) == (False, 0, 0) and first.peak_states == whole["peak_states"]
    for choice in (given, shares):
        cut = plan(Layers, scheme="baseline", slices=choice.slices)
        assert choice.saved == whole["peak_states"] - cut["peak_states"] > 0
    assert (given.slices, shares.slices) == (ROWS, True)


NONE = SliceChoice(False, 1000, 0, 0, 0.0)
MANY = SliceChoice(True, 800, 200, 90, 0.5)


@pytest.mark.parametrize(
    ("others", "best"),
    [
        ([MANY], MANY),
        ([MANY, replace(MANY, slices=4096, saved=185, count=20)], 4096),
        ([MANY, replace(MANY, slices=4096, saved=120, count=20)], MANY),
        ([MANY, replace(MANY, slices=4096, saved=185, count=95, made_again=0.1)], 4096),
        ([replace(MANY, saved=60, made_again=1.0)], NONE),
        ([replace(MANY, saved=60, made_again=0.0)], MANY),
        ([replace(MANY, saved=15), replace(MANY, slices=4096, saved=-3)], NONE),
    ],
)
def test_what_is_advisable_saves_nearly_the_most_at_the_least_price(
    others: list[SliceChoice], best: SliceChoice | int
) -> None:
    assert advisable([NONE, *others]).slices == (best.slices if isinstance(best, SliceChoice) else best)


def test_the_command_line_names_choices_and_the_one_that_is_advisable(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "tests.unit.library.test_slice_choice:Layers", "--scheme", "baseline", "--slices"]
    choices = slice_choices(Layers, scheme="baseline")
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("choice")] == [
        f"choice            {c}" for c in choices
    ]
    assert printed.rstrip().endswith(f"advisable         slices={advisable(choices).slices}")
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advisable"] == advisable(choices).slices and found["choices"][0]["slices"] is False
