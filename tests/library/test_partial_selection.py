"""AD-Topk's partial sparsification: small layers as they are, the rest with what is left of the budget."""

import pytest
import torch
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.grouping import PartialSelection, partial_selection
from tests.threads import LocalWorld
from tests.worlds import residuals

SIZES = {
    "a": (100, 100),
    "b": (100, 101),
    "c": (100, 101),
    "d": (300, 1000),
    "e": (1000, 1000),
    "f": (7, 7),
    "g[0]": (99,),
}
"""The last two are small to the library in any case."""
COMPRESSED = {name: rows * columns for name, (rows, columns) in [*SIZES.items()][:5]}
WHOLE = sum(COMPRESSED.values())


def model() -> nn.Module:
    built = nn.Module()
    for name, shape in SIZES.items():
        built.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    return built


@pytest.mark.parametrize("density", [0.001, 0.0075, 0.0076, 0.02, 0.0227, 0.0228, 0.1, 0.24, 0.26, 0.99, 1.0])
def test_as_many_layers_are_dense_as_the_budget_allows_and_it_is_kept(density: float) -> None:
    found = partial_selection(model(), density)
    options = [
        {name for name, size in COMPRESSED.items() if size <= limit} for limit in (0, *sorted(COMPRESSED.values()))
    ]
    fitting = [names for names in options if sum(COMPRESSED[name] for name in names) < density * WHOLE]
    assert set(found.dense) == max(fitting, key=len)
    small = sum(COMPRESSED[name] for name in found.dense)
    assert small + found.density * (WHOLE - small) == pytest.approx(density * WHOLE)
    assert 0 < found.density <= density
    released = partial_selection(model(), density, keep_budget=False)
    assert released == PartialSelection(found.dense, density)


def test_what_is_dense_anyway_stays_so_and_is_no_part_of_it() -> None:
    built = model()
    built.dense_parameters = ("e",)  # type: ignore[assignment]
    assert partial_selection(built, 0.04) == PartialSelection(("e", "a"), pytest.approx((13_208 - 10_000) / 320_200))
    assert partial_selection(built, 0.1, dense=()) == partial_selection(model(), 0.1)
    assert partial_selection(built, 0.04, dense=["d"]).dense == ("d", "a", "b", "c")


def test_distribute_takes_it() -> None:
    def rank(communicator: Communicator) -> tuple[set[str], int]:
        built, chosen = model(), partial_selection(model(), 0.03)
        optimizer = resireduce.distribute(
            built, torch.optim.SGD(built.parameters(), 1.0), "baseline", "adtopk", chosen.density, communicator,
            dense=chosen.dense,
        )  # fmt: skip
        sum((parameter * (torch.arange(parameter.numel()) + 1.0).view_as(parameter)).sum()
            for parameter in built.parameters()).backward()  # fmt: skip
        optimizer.step()
        moved = sum(int(getattr(built, name).count_nonzero()) for name in COMPRESSED)
        return SIZES.keys() - {name.removeprefix("full.") for name in residuals(optimizer)}, moved

    for dense, moved in LocalWorld(2).run(rank):
        assert dense == {"a", "b", "c", "f", "g[0]"}
        assert 0.9 * 0.03 * WHOLE <= moved <= 0.03 * WHOLE
