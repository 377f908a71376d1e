"""Groups and specific layers, on the paper's architectures and on small ones."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForQuestionAnswering, GPT2Config, GPT2LMHeadModel

from benchmarks.models import MODELS
from resireduce.errors import ConfigError
from resireduce.grouping import Grouping, compressible, find_groups
from resireduce.scheme import load


def vgg19() -> nn.Module:
    """VGG-19 with batch norm: torchvision's layers and names."""
    layers: list[nn.Module] = []
    channels = 3
    for stage, count in zip((64, 128, 256, 512, 512), (2, 2, 4, 4, 4), strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, stage, 3, padding=1), nn.BatchNorm2d(stage), nn.ReLU()]
            channels = stage
        layers.append(nn.MaxPool2d(2))
    sizes = ((25088, 4096), (4096, 4096), (4096, 1000))
    head = [m for size in sizes for m in (nn.Linear(*size), nn.ReLU(), nn.Dropout())]
    model = nn.Module()
    model.features, model.classifier = nn.Sequential(*layers), nn.Sequential(*head[:-2])
    return model


def test_vgg19_has_the_papers_groups() -> None:
    with torch.device("meta"):
        found = find_groups(vgg19())
    expected = [[17, 20, 23], [30, 33, 36], [40, 43, 46, 49]]
    assert found.groups == tuple(tuple(f"features.{i}.weight" for i in group) for group in expected)
    assert found.specific == ("classifier.0.weight",)


@pytest.mark.parametrize(
    ("layers", "width", "groups", "elements"), [(12, 768, 24, 84_934_656), (24, 1024, 48, 301_989_888)]
)
def test_bert_has_the_papers_groups(layers: int, width: int, groups: int, elements: int) -> None:
    config = BertConfig(vocab_size=30528, num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 64,
                        intermediate_size=4 * width)  # fmt: skip
    with torch.device("meta"):
        model = BertForQuestionAnswering(config)
    found, parameters = find_groups(model), compressible(model)
    assert {len(group) for group in found.groups} == {3} and len(found.groups) == groups
    assert sum(parameters[name].numel() for name in found.grouped) == elements
    assert found.specific == ("bert.embeddings.word_embeddings.weight",)


@pytest.mark.parametrize(("layers", "width", "groups"), [(24, 1024, 32), (36, 1280, 48)])
def test_gpt2_has_the_papers_groups(layers: int, width: int, groups: int) -> None:
    with torch.device("meta"):
        found = find_groups(GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64)))
    assert {len(group) for group in found.groups} == {3} and len(found.groups) == groups
    assert found.specific == ("transformer.wte.weight",)


@pytest.mark.parametrize("name", MODELS)
def test_the_small_models_have_both_kinds(name: str) -> None:
    with torch.device("meta"):
        model = load(MODELS[name])()
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


def test_a_grouping_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="'b' is named twice"):
        Grouping(groups=(("a", "b"),), specific=("b",))
    with pytest.raises(ConfigError, match="fewer than two"):
        Grouping(groups=(("a",),))
