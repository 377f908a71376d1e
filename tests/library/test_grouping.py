"""Groups and specific layers, on the paper's architectures and on small ones."""

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn

from benchmarks.core import workloads
from benchmarks.core.registry import MODELS
from benchmarks.training.models.convolutional import resnet152_imagenet
from resireduce.grouping import compressible, find_groups, match_groups
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
SMALL = [workload.model for workload in workloads.SMALL]


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


def test_members_of_the_papers_groups() -> None:
    expected = [[17, 20, 23], [30, 33, 36], [40, 43, 46, 49]]
    assert find_groups(on_meta("vgg19")).groups == tuple(tuple(f"features.{i}.weight" for i in g) for g in expected)
    assert {len(g) for name in ("bert-base", "gpt2-large") for g in find_groups(on_meta(name)).groups} == {3}
    blocks = {"conv1": (2, 3, 5, 2), "conv2": (3, 4, 6, 3), "conv3": (3, 4, 6, 3)}
    lengths = {group[0]: len(group) for group in find_groups(on_meta("resnet50")).groups}
    assert lengths == {
        f"layer{stage + 1}.{int(conv == 'conv1')}.{conv}.weight": counts[stage]
        for conv, counts in blocks.items()
        for stage in range(4)
    }


def llama() -> nn.Module:
    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 1376, "vocab_size": 32_000}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=False))


def vit_large() -> nn.Module:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def gpt2_small() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


@pytest.mark.parametrize(
    ("build", "groups", "members", "lengths", "specific"),
    [
        (resnet152_imagenet, 47, 146, {2, 3, 4, 5}, ()),
        (vit_large, 48, 144, {3}, ()),
        (gpt2_small, 16, 48, {3}, ("transformer.wte.weight",)),
        (llama, 14, 56, {3, 5}, ("model.embed_tokens.weight",)),
    ],
)
def test_groups_of_models_that_the_paper_did_not_try(
    build: Callable[[], nn.Module], groups: int, members: int, lengths: set[int], specific: tuple[str, ...]
) -> None:
    with torch.device("meta"):
        found = find_groups(build())
    assert (len(found.groups), len(found.grouped)) == (groups, members)
    assert {len(group) for group in found.groups} == lengths
    assert found.specific == specific


def test_the_exemption_of_the_papers_code_is_the_models_and_can_be_replaced() -> None:
    model = on_meta("resnet50")
    assert "fc.weight" not in compressible(model)
    assert compressible(model, dense=()).keys() - compressible(model).keys() == {"fc.weight"}
    assert (
        compressible(model, dense=["layer4.*", "fc.weight"]).keys().isdisjoint({"layer4.0.conv1.weight", "fc.weight"})
    )


@pytest.mark.parametrize("name", SMALL)
def test_the_small_models_have_both_kinds(name: str) -> None:
    model = on_meta(name)
    found, parameters = find_groups(model), compressible(model)
    assert len(found.groups) >= 2 and len(found.specific) == 1
    grouped = [parameters[name].numel() for name in found.grouped]
    assert parameters[found.specific[0]].numel() > max(grouped)
    assert sum(grouped) > 0.2 * sum(p.numel() for p in parameters.values())


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
