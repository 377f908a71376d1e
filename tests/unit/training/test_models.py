"""The small models have the shapes, groups and specific layers that the experiments rest on."""

import pytest
import torch
from torch import nn

from benchmarks.core.registry import MODELS, TASKS
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.models.convolutional import POOL, VGG, GridPool
from benchmarks.training.tasks.task import Setting
from resireduce.grouping import compressible, find_groups
from resireduce.scheme import load
from tests.unit.training.test_full_size import on_meta

SPECIFIC = {
    "resnet-digits": ("layer3.0.conv2.weight", (160, 160, 3, 3)),
    "vgg-digits": ("classifier.0.weight", (448, 1536)),
    "gpt2-bytes": ("transformer.wte.weight", (1024, 128)),
    "bert-questions": ("bert.embeddings.word_embeddings.weight", (768, 128)),
}
SMALL = tuple(SPECIFIC)


@pytest.mark.parametrize("model", SMALL)
def test_the_specific_layer_is_the_largest_tensor(model):
    built, (name, shape) = on_meta(model), SPECIFIC[model]
    assert all(parameter.is_meta for parameter in built.parameters())
    assert find_groups(built).specific == (name,) and tuple(built.get_parameter(name).shape) == shape
    assert all(p.numel() < built.get_parameter(name).numel() for n, p in built.named_parameters() if n != name)


def group_shapes(model: str) -> list[tuple[str, int, tuple[int, ...]]]:
    built = on_meta(model)
    return [(group[0], len(group), tuple(built.get_parameter(group[0]).shape)) for group in find_groups(built).groups]


def test_groups_of_the_convolutional_models():
    assert sorted(group_shapes("resnet-digits")) == [
        ("layer1.0.conv2.weight", 3, (56, 56, 3, 3)),
        ("layer1.0.conv3.weight", 3, (224, 56, 1, 1)),
        ("layer1.1.conv1.weight", 2, (56, 224, 1, 1)),
        ("layer2.0.conv2.weight", 4, (80, 80, 3, 3)),
        ("layer2.0.conv3.weight", 4, (320, 80, 1, 1)),
        ("layer2.1.conv1.weight", 3, (80, 320, 1, 1)),
    ]
    assert group_shapes("vgg-digits") == [
        ("features.3.weight", 3, (48, 48, 3, 3)),
        ("features.16.weight", 3, (96, 96, 3, 3)),
    ]


@pytest.mark.parametrize(
    ("model", "kinds", "layers"), [("gpt2-bytes", 4, 6), ("bert-questions", 6, 6), ("vit-large", 4, 24)]
)
def test_transformers_group_every_matrix_of_their_layers(model, kinds, layers):
    built = on_meta(model)
    shapes, grouped = group_shapes(model), find_groups(built).grouped
    assert sum(count for _, count, _ in shapes) == layers * kinds
    every = sum(parameter.numel() for parameter in built.parameters())
    assert sum(built.get_parameter(name).numel() for name in grouped) / every > 0.85


@pytest.mark.parametrize("model", SMALL)
def test_every_parameter_gets_a_gradient_and_no_activation_gradient_looks_like_one(model):
    """A tracker that knows dense gradients by their shapes must not take an activation's gradient for one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = load(MODELS[model])()
    task = load(TASKS[WORKLOADS[model].task])(Setting())
    batch = task.batch(torch.arange(WORKLOADS[model].batch_per_rank))
    shapes = {tuple(parameter.shape) for parameter in compressible(built).values()}
    seen: list[tuple[int, ...]] = []

    def watch(module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            flat = output.flatten(0, -2)
            seen.extend((tuple(output.shape), tuple(flat.shape), tuple(flat.T.shape)))

    for module in built.modules():
        module.register_forward_hook(watch)
    task.loss(built, batch).backward()
    assert [name for name, parameter in built.named_parameters() if parameter.grad is None] == []
    assert len(seen) > 10
    assert shapes.isdisjoint(seen)


@pytest.mark.parametrize("size", [1, 3, 4, 8])
def test_pooling_to_a_grid_is_torchs_adaptive_pooling(size):
    ours, theirs = GridPool(4), nn.AdaptiveAvgPool2d(4)
    first = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(size)).requires_grad_()
    second = first.detach().clone().requires_grad_()
    assert torch.equal(ours(first), theirs(second))
    weights = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    (ours(first) * weights).sum().backward()
    (theirs(second) * weights).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_on_images_of_32_pixels_each_gradient_of_the_first_fully_connected_layer_stands_49_times():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VGG([4, POOL] * 5, grid=7, hidden=(16, 8), classes=3)  # five poolings, as VGG-19's
        nn.functional.cross_entropy(model(torch.randn(5, 3, 32, 32)), torch.arange(5) % 3).backward()
    places = model.classifier[0].weight.grad.view(16, 4, 49)
    assert places.any() and torch.equal(places, places[..., :1].expand(-1, -1, 49))
