"""The models: how large they are, what their tensors are called, their groups, and a step of one at full size."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
from benchmarks.core.registry import MODELS, TASKS
from benchmarks.core.workloads import PAPER, WORKLOADS
from benchmarks.training.models.convolutional import GridPool
from benchmarks.training.models.vit import VisionTransformer
from benchmarks.training.tasks.task import Setting
from resireduce.grouping import compressible, find_groups
from resireduce.scheme import load

PARAMETERS = {
    "resnet-digits": 1_268_242,
    "vgg-digits": 1_102_010,
    "gpt2-bytes": 1_331_200,
    "bert-questions": 1_298_946,
    "resnet50": 23_705_252,
    "resnet50-imagenet": 25_557_032,
    "vgg19": 143_678_248,
    "bert-base": 108_897_794,
    "bert-large": 334_100_482,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "resnet152-imagenet": 60_192_808,
    "vgg16-imagenet": 138_365_992,
    "vit-large": 304_326_632,
    # As in He et al., section 4.2: 0.27 and 1.7 million.
    "resnet20": 269_722,
    "resnet110": 1_727_962,
}

# The first 16 hexadecimal digits of the SHA-256 of "name shape" lines of the state dicts of torchvision 0.29.2.
TORCHVISION = {
    "resnet50-imagenet": "3fa57287149b51c4",
    "resnet152-imagenet": "47360b6062c7afaa",
    "vgg19": "4c042cc97e1d6342",
    "vgg16-imagenet": "5f99e428d932f79e",
    "vit-large": "621baca3950300fb",
}


SPECIFIC = {
    "resnet-digits": ("layer3.0.conv2.weight", (160, 160, 3, 3)),
    "vgg-digits": ("classifier.0.weight", (448, 1536)),
    "gpt2-bytes": ("transformer.wte.weight", (1024, 128)),
    "bert-questions": ("bert.embeddings.word_embeddings.weight", (768, 128)),
}


def on_meta(model: str) -> nn.Module:
    with torch.device("meta"):
        return load(MODELS[model])()


@pytest.mark.parametrize("model", PARAMETERS)
def test_parameters_are_as_many_as_published_and_named_as_torchvisions(model):
    """So that its weights load."""
    built = on_meta(model)
    assert sum(parameter.numel() for parameter in built.parameters()) == PARAMETERS[model]
    layout = "".join(f"{name} {tuple(tensor.shape)}\n" for name, tensor in built.state_dict().items())
    if model in TORCHVISION:
        assert hashlib.sha256(layout.encode()).hexdigest()[:16] == TORCHVISION[model]
    if model in SPECIFIC:
        name, shape = SPECIFIC[model]
        assert find_groups(built).specific == (name,) and tuple(built.get_parameter(name).shape) == shape


def test_a_vision_transformer_sees_patches_in_order():
    model = VisionTransformer(size=8, patch=4, layers=1, width=8, heads=2, hidden=16, classes=3)
    tokens = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0]))
    x = torch.randn(2, 3, 8, 8)
    assert model(x).shape == (2, 3)
    expected = model.conv_proj(x[:, :, 4:, :4])[:, :, 0, 0]  # third patch: second row, first column
    assert tokens[0].shape == (2, 5, 8)
    assert torch.allclose(tokens[0][:, 3], expected, atol=1e-6)


@pytest.mark.parametrize("model", SPECIFIC)
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


def test_resnet50_takes_a_step_at_full_size(tmp_path):
    config = read_config(Path(__file__).parents[3] / "benchmarks/config/full-size.yaml")
    cells = {cell.model: cell for cell in expand({key: config[key] for key in ("defaults", "matrix")})}
    assert list(cells) == [workload.model for workload in PAPER]
    spec, output = tmp_path / "cell.json", tmp_path / "out.json"
    spec.write_text(json.dumps(cells["resnet50"].to_dict() | {"steps": 1}))
    assert main(["run", "--cell", str(spec), "--output", str(output)]) == 0
    record = CellResult.load(output)
    assert (record.status, record.steps, record.metric_name) == ("ok", 1, "top1")
    assert (record.parameters_bytes, record.gradients_bytes) == (4 * PARAMETERS["resnet50"], 0)
    assert record.optimizer_states_bytes == pytest.approx(4 * PARAMETERS["resnet50"], rel=1e-5)
    left = 23_441_408 - 14_065_664  # elements of residuals under w+2d, by hand from the shapes
    indices = record.residuals_bytes - 4 * left
    assert 0 <= indices <= 300_000, "those of rows and columns are counted too"
