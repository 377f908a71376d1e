"""Residual networks (He et al., CVPR 2016), with torchvision's attribute names."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import pad

from benchmarks.training.models.example import with_inputs


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut that has no parameters: every second pixel, and zeros for new channels.

    (batch, inputs, height, width) becomes (batch, width, height / stride, width / stride). Option A of the paper's
    section 4.2, which it uses for CIFAR-10.
    """

    expansion: ClassVar = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.stride, self.new_channels = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Add the transformed input to the input."""
        shortcut = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution with a shortcut.

    (batch, inputs, height, width) becomes (batch, 4 * width, height / stride, width / stride).
    """

    expansion: ClassVar = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Add the transformed input to the (projected) input."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """Stages ``layer1``, ``layer2``, ... behind a stem.

    Args:
        blocks: blocks of each stage; every stage but the first halves height and width.
        widths: inner width of each stage.
        classes: number of logits.
        channels: channels of the images.
        large_images: a 7x7 stem that halves height and width, and pooling that halves them again; else a 3x3 stem
            that keeps them, as is usual for small images.
        block: what the stages are made of.
    """

    dense_parameters = ("fc.weight",)
    """Sent dense and without a residual, as in the code released with the paper."""

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        classes: int,
        channels: int = 3,
        large_images: bool = False,
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck,
    ) -> None:
        super().__init__()
        if len(blocks) != len(widths):
            raise ValueError(f"blocks has {len(blocks)} stages and widths {len(widths)}: give one width for each stage")
        self.conv1 = _conv(channels, widths[0], 7, 2) if large_images else _conv(channels, widths[0], 3)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1) if large_images else nn.Identity()
        self.stages = [f"layer{index}" for index in range(1, len(blocks) + 1)]
        inputs = widths[0]
        for index, (name, count, width) in enumerate(zip(self.stages, blocks, widths, strict=True)):
            first = block(inputs, width, stride=1 if index == 0 else 2)
            inputs = block.expansion * width
            setattr(self, name, nn.Sequential(first, *(block(inputs, width) for _ in range(count - 1))))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Classify images (batch, channels, height, width): logits (batch, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(self.avgpool(x).flatten(1))


@with_inputs("resnet-digits")
def resnet_digits() -> ResNet:
    """Build the ResNet for grey 8x8 digits, 1.3 million parameters.

    The last stage has one block and is wide enough for its 3x3 convolution (160 x 160 x 3 x 3) to be the largest tensor
    of all, larger than its own shortcut (320 x 640): it is the specific layer.  Stages one and two make the groups.
    """
    return ResNet(blocks=(3, 4, 1), widths=(56, 80, 160), classes=10, channels=1)


@with_inputs("resnet50")
def resnet50() -> ResNet:
    """Build ResNet-50 for 32x32 images of 100 classes: what the paper trained on CIFAR-100, 23.7 million parameters."""
    return ResNet(blocks=(3, 4, 6, 3), widths=(64, 128, 256, 512), classes=100)


@with_inputs("resnet50-imagenet")
def resnet50_imagenet() -> ResNet:
    """Build ResNet-50 for 224x224 images of 1000 classes: the size in the paper's Table 1, 25.6 million parameters."""
    return ResNet(blocks=(3, 4, 6, 3), widths=(64, 128, 256, 512), classes=1000, large_images=True)


@with_inputs("resnet152-imagenet")
def resnet152_imagenet() -> ResNet:
    """Build ResNet-152 for 224x224 images of 1000 classes, 60.2 million parameters."""
    return ResNet(blocks=(3, 8, 36, 3), widths=(64, 128, 256, 512), classes=1000, large_images=True)


@with_inputs("resnet20")
def resnet20() -> ResNet:
    """Build ResNet-20 for 32x32 images of 10 classes: CIFAR-10's, 0.27 million parameters."""
    return ResNet(blocks=(3, 3, 3), widths=(16, 32, 64), classes=10, block=BasicBlock)


@with_inputs("resnet110")
def resnet110() -> ResNet:
    """Build ResNet-110 for 32x32 images of 10 classes: CIFAR-10's, 1.73 million parameters."""
    return ResNet(blocks=(18, 18, 18), widths=(16, 32, 64), classes=10, block=BasicBlock)
