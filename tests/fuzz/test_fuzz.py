"""Composed models and scripts: the library agrees with plain torch, streamed and kept, on two ranks.

`make fuzz` tries 1,000 of them, other ones each time; `make test` the same 30 every time.
"""

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings

import resireduce
from tests import oracle
from tests.fuzz.build import Built
from tests.fuzz.interpret import Interpreter
from tests.fuzz.programs import Program, programs
from tests.habits.script import MODES, values
from tests.threads import LocalWorld
from tests.worlds import seeded

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
RANKS = 2


def start(program: Program) -> Built:
    """In float64, in which the order of a sum does not decide what is the largest."""
    return seeded(lambda: Built(program.model).double(), program.seed)


def by_oracle(program: Program, gradients: str) -> list[Any]:
    ranks, model = oracle.Ranks(RANKS), start(program)

    def act(rank: int) -> list[Any]:
        distribute = partial(oracle.distribute, ranks, rank, gradients=gradients)
        return Interpreter(program, rank, model, distribute).run()

    return ranks.run(act)


def by_library(program: Program, gradients: str) -> list[Any]:
    model = start(program)

    def act(communicator: Any) -> list[Any]:
        distribute = partial(resireduce.distribute, backend=communicator, gradients=gradients)
        return Interpreter(program, communicator.rank, model, distribute).run()

    return LocalWorld(RANKS).run(act)


def agree(mine: list[Any], right: list[Any], what: str) -> None:
    for index, (ours, theirs) in enumerate(zip(values(mine), values(right), strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, msg=lambda text, i=index: f"{what} {i}: {text}")


def check(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for gradients in MODES:
            right, mine = by_oracle(program, gradients), by_library(program, gradients)
            assert all(value.isfinite().all() for value in values(right))
            agree(mine, right, gradients)
            agree(list(mine[0][0].parameters()), list(mine[1][0].parameters()), f"{gradients}, ranks")


chosen: Callable[..., Any] = settings(
    max_examples=EXAMPLES or 30,
    derandomize=not EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@chosen
@given(program=programs)
def test_composed_programs(program: Program) -> None:
    check(program)
