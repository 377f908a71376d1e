"""Groups and specific layers, on the paper's architectures and on small ones; and AD-Topk's choice of dense layers."""

import pytest
import torch
from torch import nn

from benchmarks.core.registry import MODELS
from resireduce.grouping import PartialSelection, compressible, find_groups, match_groups, partial_selection
from resireduce.plan import plan
from resireduce.scheme import build_residual, load

# Elements, counted from the paper's architectures: parameters, those with a residual, those in groups; groups, their
# members; elements that w and 2d save (an index of 4 bytes is one that 2d does not save).
PAPER = {
    "resnet50": (23_705_252, 23_441_408, 19_984_384, 12, 44, 14_065_664, 0),
    "resnet50-imagenet": (25_557_032, 23_441_408, 19_984_384, 12, 44, 14_065_664, 0),
    "vgg19": (143_678_248, 143_650_816, 18_284_544, 3, 10, 12_976_128, 77_070_336 - 2048 - 12544),
    "bert-base": (108_897_794, 108_773_376, 84_934_656, 24, 72, 56_623_104, 17_584_128 - 15264 - 384),
    "bert-large": (334_100_482, 333_774_848, 301_989_888, 48, 144, 201_326_592, 23_445_504 - 15264 - 512),
    "gpt2-medium": (354_823_168, 354_501_632, 301_989_888, 32, 96, 201_326_592, 38_597_632 - 25128 - 512),
    "gpt2-large": (774_030_080, 773_428_480, 707_788_800, 48, 144, 471_859_200, 48_247_040 - 25128 - 640),
}
SPECIFIC = {
    "vgg19": "classifier.0.weight",
    "bert-base": "bert.embeddings.word_embeddings.weight",
    "bert-large": "bert.embeddings.word_embeddings.weight",
    "gpt2-medium": "transformer.wte.weight",
    "gpt2-large": "transformer.wte.weight",
}


# The optimizer, and the model states with w+2d in per cent of those with full residuals: (copies x T + R) / (copies x T
# + R0), where copies of all T parameters are parameters, gradients and the optimizer's states.
NORMALISED = {"resnet50": ("sgd", 85.1), "vgg19": ("sgd", 84.3), "bert-base": ("adamw", 86.4)}
COPIES = {"sgd": 3, "adamw": 4}


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return load(MODELS[name])()


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_models_have_its_groups_and_savings(name: str) -> None:
    elements, with_residual, grouped, groups, members, saved_w, saved_2d = PAPER[name]
    model = on_meta(name)
    found, parameters = find_groups(model), compressible(model)
    assert sum(p.numel() for p in model.parameters()) == elements
    assert sum(p.numel() for p in parameters.values()) == with_residual
    assert sum(parameters[member].numel() for member in found.grouped) == grouped
    assert (len(found.groups), len(found.grouped)) == (groups, members)
    assert found.specific == ((SPECIFIC[name],) if name in SPECIFIC else ())
    for scheme, saved in (("baseline", 0), ("w", saved_w), ("2d", saved_2d), ("w+2d", saved_w + saved_2d)):
        residual = build_residual(scheme, found)
        for tensor, parameter in parameters.items():
            residual.of(tensor).register(tensor, parameter)
        assert residual.nbytes() == 4 * (with_residual - saved)


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


def test_the_exemption_of_the_papers_code_is_the_models_and_can_be_replaced() -> None:
    model = on_meta("resnet50")
    assert "fc.weight" not in compressible(model)
    assert compressible(model, dense=()).keys() - compressible(model).keys() == {"fc.weight"}
    assert (
        compressible(model, dense=["layer4.*", "fc.weight"]).keys().isdisjoint({"layer4.0.conv1.weight", "fc.weight"})
    )


def run_of(*sizes: int, between: nn.Module | None = None) -> nn.Sequential:
    gap = [] if between is None else [between]
    return nn.Sequential(*[m for size in sizes for m in (nn.Linear(size, size), *gap)])


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        (run_of(100), []),
        (run_of(100, 100), [2]),
        (run_of(*[100] * 6), [6]),
        (run_of(*[100] * 7), [3, 4]),
        (run_of(*[100] * 8), [3, 5]),
        (run_of(*[100] * 9), [3, 3, 3]),
        (run_of(100, 100, 120, 100, 100, 100), [2, 3]),
        (run_of(99, 99, 99), []),
        (run_of(100, 100, between=nn.ReLU()), [2]),
        (run_of(100, 100, between=nn.MaxPool1d(1)), []),
        (nn.Sequential(run_of(100, 100), run_of(100, 100)), [2, 2]),
    ],
)
def test_runs(model: nn.Module, groups: list[int]) -> None:
    assert [len(group) for group in find_groups(model).groups] == groups


def test_frozen_layers_are_in_no_group_and_end_a_run() -> None:
    model = run_of(100, 100, 100, 100)
    model[1].requires_grad_(False)
    assert find_groups(model).groups == (("2.weight", "3.weight"),)


def test_patterns_name_groups_and_specific_layers() -> None:
    parameters = compressible(run_of(*[100] * 8, 120))
    patterns = {"groups": [["0.weight", "2.weight"], "[4-7].weight"], "specific": ["8.*"]}
    found = match_groups(patterns, parameters)
    assert found.groups == (("0.weight", "2.weight"), tuple(f"{i}.weight" for i in range(4, 8)))
    assert found.specific == ("8.weight",)
    assert [len(group) for group in match_groups({"groups": ["[0-7].*"]}, parameters).groups] == [3, 5]


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
