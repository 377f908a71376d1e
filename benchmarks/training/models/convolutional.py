"""Residual networks (He et al., CVPR 2016) and VGG (Simonyan and Zisserman, ICLR 2015), with torchvision's names."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import pad

from benchmarks.training.models.example import give_inputs

POOL = "M"
"""Entry of a layer list that stands for 2x2 max pooling."""


class GridPool(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling that copies where there is nothing to average: to the same size, and from one pixel.

    On a GPU the backward pass of torch's own pooling adds with atomics, in no fixed order. Images of 224 pixels give a
    map of the grid's size, those of CIFAR a single pixel.
    """

    output_size: int

    def forward(self, x: Tensor) -> Tensor:
        grid = self.output_size
        if x.shape[-2:] == (grid, grid):
            return x
        return x.expand(-1, -1, grid, grid) if x.shape[-2:] == (1, 1) else super().forward(x)


class VGG(nn.Module):
    """Plain 3x3 convolutions and three fully connected layers (``classifier.0``, ``.3`` and ``.6``).

    Args:
        layers: widths of the convolutions in order, "M" for a pooling layer.
        grid: height and width of the feature map that the classifier sees.
        hidden: widths of the two hidden fully connected layers.
        linear_std: initial standard deviation of fully connected weights, 0.01 in torchvision; None: Kaiming's.
    """

    def __init__(
        self,
        layers: Sequence[int | str],
        *,
        grid: int,
        hidden: tuple[int, int],
        classes: int,
        channels: int = 3,
        dropout: float = 0.5,
        linear_std: float | None = None,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        for layer in layers:
            if isinstance(layer, str):
                self.features.append(nn.MaxPool2d(kernel_size=2, stride=2))
            else:
                new = (nn.Conv2d(channels, layer, 3, padding=1), nn.BatchNorm2d(layer), nn.ReLU(inplace=True))
                self.features.extend(new)
                channels = layer
        self.avgpool = GridPool(grid)
        self.classifier = nn.Sequential(
            nn.Linear(channels * grid * grid, hidden[0]),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden[1], classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear) and linear_std is not None:
                nn.init.normal_(module.weight, std=linear_std)
            elif isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def vgg_digits() -> VGG:
    """Build the VGG for grey 8x8 digits, 1.1 million parameters.

    ``classifier.0`` (448 x 1536) holds 62 % of them, as VGG-19's holds 71 %: it is the specific layer.  The fully
    connected layers differ in shape, so that none of them is grouped; the two runs of three equal convolutions are.
    Dropout is off, so that two runs differ by nothing but the gradients' treatment.
    """
    layers = (48, 48, 48, 48, POOL, 96, 96, 96, 96)
    return VGG(layers, grid=4, hidden=(448, 128), classes=10, channels=1, dropout=0.0)


def vgg19() -> VGG:
    """Build VGG-19 with batch normalisation for 224x224 images of 1000 classes, 143.7 million parameters.

    The paper trains exactly this on the 32x32 images of CIFAR-100 (its Table 1 has the size).
    """
    return _imagenet((2, 2, 4, 4, 4))


def vgg16_imagenet() -> VGG:
    """Build VGG-16 with batch normalisation for 224x224 images of 1000 classes, 138.4 million parameters."""
    return _imagenet((2, 2, 3, 3, 3))


def _imagenet(convolutions: Sequence[int]) -> VGG:
    """Build a VGG with this many convolutions before each pooling layer."""
    widths = (64, 128, 256, 512, 512)
    layers: list[int | str] = []
    for width, count in zip(widths, convolutions, strict=True):
        layers += [*[width] * count, POOL]
    return VGG(layers, grid=7, hidden=(4096, 4096), classes=1000, linear_std=0.01)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Convolutions with a shortcut: (batch, inputs, h, w) becomes (batch, outputs, h / stride, w / stride).

    A bottleneck has those of 1x1, 3x3 and 1x1, and 4 * width outputs. Else there are two of 3x3, and `width` outputs,
    and the shortcut has no parameters: every second pixel, and zeros for new channels. That is option A of the paper's
    section 4.2, which it uses for CIFAR-10.
    """

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        widths = (inputs, width, width, 4 * width) if bottleneck else (inputs, width, width)
        for number, kernel in enumerate(kernels):
            strided = stride if number == bottleneck else 1
            self.add_module(f"conv{number + 1}", _conv(widths[number], widths[number + 1], kernel, strided))
            self.add_module(f"bn{number + 1}", nn.BatchNorm2d(widths[number + 1]))
        self.relu = nn.ReLU(inplace=True)
        self.convolutions, self.stride, self.new_channels = len(kernels), stride, widths[-1] - inputs
        self.pads = not bottleneck
        self.downsample: nn.Sequential | None = None
        if bottleneck and (stride != 1 or self.new_channels):
            self.downsample = nn.Sequential(_conv(inputs, widths[-1], 1, stride), nn.BatchNorm2d(widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        if self.pads:
            shortcut = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        for number in range(1, self.convolutions + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            x = self.relu(x if number < self.convolutions else x + shortcut)
        return x


class ResNet(nn.Module):
    """Stages ``layer1``, ``layer2``, ... behind a stem.

    Args:
        blocks: blocks of each stage; every stage but the first halves height and width.
        widths: inner width of each stage.
        large_images: a 7x7 stem that halves height and width, and pooling that halves them again; else a 3x3 stem
            that keeps them, as is usual for small images.
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
        bottleneck: bool = True,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(channels, widths[0], 7, 2) if large_images else _conv(channels, widths[0], 3)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1) if large_images else nn.Identity()
        self.stages = [f"layer{index}" for index in range(1, len(blocks) + 1)]
        inputs = widths[0]
        for index, (name, count, width) in enumerate(zip(self.stages, blocks, widths, strict=True)):
            first = Block(inputs, width, 1 if index == 0 else 2, bottleneck)
            inputs = 4 * width if bottleneck else width
            setattr(self, name, nn.Sequential(first, *(Block(inputs, width, 1, bottleneck) for _ in range(count - 1))))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet_digits() -> ResNet:
    """Build the ResNet for grey 8x8 digits, 1.3 million parameters.

    The last stage has one block and is wide enough for its 3x3 convolution (160 x 160 x 3 x 3) to be the largest tensor
    of all, larger than its own shortcut (320 x 640): it is the specific layer.  Stages one and two make the groups.
    """
    return ResNet(blocks=(3, 4, 1), widths=(56, 80, 160), classes=10, channels=1)


def resnet50() -> ResNet:
    """Build ResNet-50 for 32x32 images of 100 classes: what the paper trained on CIFAR-100, 23.7 million parameters."""
    return ResNet(blocks=(3, 4, 6, 3), widths=(64, 128, 256, 512), classes=100)


def resnet50_imagenet() -> ResNet:
    """Build ResNet-50 for 224x224 images of 1000 classes: the size in the paper's Table 1, 25.6 million parameters."""
    return ResNet(blocks=(3, 4, 6, 3), widths=(64, 128, 256, 512), classes=1000, large_images=True)


def resnet152_imagenet() -> ResNet:
    """Build ResNet-152 for 224x224 images of 1000 classes, 60.2 million parameters."""
    return ResNet(blocks=(3, 8, 36, 3), widths=(64, 128, 256, 512), classes=1000, large_images=True)


def resnet20() -> ResNet:
    """Build ResNet-20 for 32x32 images of 10 classes: CIFAR-10's, 0.27 million parameters."""
    return ResNet(blocks=(3, 3, 3), widths=(16, 32, 64), classes=10, bottleneck=False)


def resnet110() -> ResNet:
    """Build ResNet-110 for 32x32 images of 10 classes: CIFAR-10's, 1.73 million parameters."""
    return ResNet(blocks=(18, 18, 18), widths=(16, 32, 64), classes=10, bottleneck=False)


give_inputs(__name__)
