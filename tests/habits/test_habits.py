"""Every habit, streamed and kept on two ranks, and some on one: right, or refused with the text that it names."""

import importlib
import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.habits.script import HABITS, MODES, Habit, Refused, by_library, by_oracle, values

MODULES = ("steps", "scripts")
for module in MODULES:
    importlib.import_module(f"tests.habits.{module}")

CASES = [
    (name, mode, ranks)
    for number, (name, habit) in enumerate(HABITS.items())
    for place, mode in enumerate(MODES)
    for ranks in habit.ranks
    if ranks == max(habit.ranks) or (number + place) % 4 == 0
]


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    yield
    torch.autograd.set_detect_anomaly(False)


def agree(mine: object, right: object, rounded: bool) -> None:
    """All numbers are equal to the last bit, or but for the order of sums."""
    for ours, theirs in zip(values(mine), values(right), strict=True):
        if rounded:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(ours, theirs), f"{(ours - theirs).abs().max()} apart"


def check_right(habit: Habit, mode: str, ranks: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = by_oracle(habit, mode, ranks)
        warnings.filterwarnings("error", message=r"Detected call of `lr_scheduler\.step")
        mine = by_library(habit, mode, ranks)
    for one, other in zip(mine, right, strict=True):
        assert all(value.isfinite().all() for value in values(other))
        agree(one, other, mode in habit.rounded)
    if mode not in habit.rounded and ranks > 1 and isinstance(mine[0], torch.nn.Module):
        agree(mine[0], mine[1], rounded=False)


def check_refused(habit: Habit, mode: str, ranks: int, refused: Refused) -> None:
    """On every rank that is not waiting for one that has ended."""
    seen, act = [], habit.act

    def noted(script: object) -> object:
        try:
            return act(script)  # type: ignore[arg-type]
        except Exception as error:
            seen.append(error)
            raise

    with warnings.catch_warnings(), pytest.raises(refused.error, match=refused.text):
        warnings.simplefilter("ignore")
        by_library(Habit(noted, habit.outcomes, build=habit.build), mode, ranks)
    own = [error for error in seen if not isinstance(error, ConnectionError)]
    assert all(isinstance(error, refused.error) for error in own), own


@pytest.mark.parametrize(("name", "mode", "ranks"), CASES, ids=[f"{n}-{m}-{r}" for n, m, r in CASES])
def test_habit(name: str, mode: str, ranks: int) -> None:
    habit = HABITS[name]
    outcome = habit.outcomes[mode]
    if outcome is None:
        check_right(habit, mode, ranks)
    else:
        check_refused(habit, mode, ranks, outcome)
