"""The models: how large they are, and what the tensors of those of the paper and the READMEs are called."""

import hashlib

import pytest
import torch
from torch import nn

from benchmarks.core.registry import MODELS
from benchmarks.training.models.convolutional import BasicBlock, ResNet
from benchmarks.training.models.vit import VisionTransformer
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
    "bert-base-pretraining": 110_106_428,
    "bert-large-pretraining": 336_226_108,
    "resnet152-imagenet": 60_192_808,
    "vgg16-imagenet": 138_365_992,
    "vit-large": 304_326_632,
    # As in He et al., section 4.2: 0.27 and 1.7 million.
    "resnet20": 269_722,
    "resnet110": 1_727_962,
}

# The first 16 hexadecimal digits of the SHA-256 of "name shape" lines of the state dicts of torchvision 0.29.2.
TORCHVISION = {
    "resnet50-imagenet": ("resnet50", "3fa57287149b51c4"),
    "resnet152-imagenet": ("resnet152", "47360b6062c7afaa"),
    "vgg19": ("vgg19_bn", "4c042cc97e1d6342"),
    "vgg16-imagenet": ("vgg16_bn", "5f99e428d932f79e"),
    "vit-large": ("vit_l_16", "621baca3950300fb"),
}


def on_meta(model: str) -> nn.Module:
    with torch.device("meta"):
        return load(MODELS[model])()


def layout(model: nn.Module) -> str:
    return "".join(f"{name} {tuple(tensor.shape)}\n" for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("model", PARAMETERS)
def test_parameter_count(model):
    assert sum(parameter.numel() for parameter in on_meta(model).parameters()) == PARAMETERS[model]


@pytest.mark.parametrize("model", TORCHVISION)
def test_names_and_shapes_are_torchvisions(model):
    """So that its weights load."""
    assert hashlib.sha256(layout(on_meta(model)).encode()).hexdigest()[:16] == TORCHVISION[model][1]


def test_the_cifar_resnet_keeps_the_image_in_its_first_stage_and_halves_it_then():
    model = ResNet(blocks=(1, 1, 1), widths=(2, 4, 8), classes=3, block=BasicBlock)
    x = torch.randn(2, 2, 32, 32)
    assert model.layer1(x).shape == (2, 2, 32, 32)
    assert model.layer3(model.layer2(model.layer1(x))).shape == (2, 8, 8, 8)


def test_a_vision_transformer_sees_patches_in_order():
    model = VisionTransformer(size=8, patch=4, layers=1, width=8, heads=2, hidden=16, classes=3)
    tokens = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0]))
    x = torch.randn(2, 3, 8, 8)
    assert model(x).shape == (2, 3)
    expected = model.conv_proj(x[:, :, 4:, :4])[:, :, 0, 0]  # third patch: second row, first column
    assert tokens[0].shape == (2, 5, 8)
    assert torch.allclose(tokens[0][:, 3], expected, atol=1e-6)
