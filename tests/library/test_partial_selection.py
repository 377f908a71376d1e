"""AD-Topk's partial sparsification: small layers as they are, the rest with what is left of the budget."""

import pytest
import torch
from torch import nn

from resireduce.grouping import PartialSelection, partial_selection

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


def test_what_is_dense_anyway_stays_so_and_is_no_part_of_it() -> None:
    built = model()
    built.dense_parameters = ("e",)  # type: ignore[assignment]
    assert partial_selection(built, 0.04) == PartialSelection(("e", "a"), pytest.approx((13_208 - 10_000) / 320_200))
    assert partial_selection(built, 0.1, dense=()) == partial_selection(model(), 0.1)
    assert partial_selection(built, 0.04, dense=["d"]).dense == ("d", "a", "b", "c")
