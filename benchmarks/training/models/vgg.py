"""VGG with batch normalisation (Simonyan and Zisserman, ICLR 2015), with torchvision's attribute names."""

from collections.abc import Sequence

from torch import Tensor, nn

from benchmarks.training.models.example import with_inputs

POOL = "M"
"""Entry of a layer list that stands for 2x2 max pooling."""


def _features(layers: Sequence[int | str], channels: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, str):
            modules.append(nn.MaxPool2d(kernel_size=2, stride=2))
        else:
            modules += [nn.Conv2d(channels, layer, 3, padding=1), nn.BatchNorm2d(layer), nn.ReLU(inplace=True)]
            channels = layer
    return nn.Sequential(*modules)


class GridPool(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling that copies where there is nothing to average: to the same size, and from one pixel.

    On a GPU the backward pass of torch's own pooling adds with atomics, in no fixed order. Images of 224 pixels give a
    map of the grid's size, those of CIFAR a single pixel.
    """

    def __init__(self, grid: int) -> None:
        super().__init__(grid)
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) becomes (batch, channels, grid, grid)."""
        if x.shape[-2:] == (self.grid, self.grid):
            return x
        if x.shape[-2:] == (1, 1):
            return x.expand(-1, -1, self.grid, self.grid)
        return super().forward(x)


class VGG(nn.Module):
    """Plain 3x3 convolutions and three fully connected layers (``classifier.0``, ``.3`` and ``.6``).

    Args:
        layers: widths of the convolutions in order, "M" for a pooling layer.
        grid: height and width of the feature map that the classifier sees.
        hidden: widths of the two hidden fully connected layers.
        classes: number of logits.
        channels: channels of the images.
        dropout: probability of zeroing a hidden unit of the classifier.
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
        self.features = _features(layers, channels)
        self.avgpool = GridPool(grid)
        width = [layer for layer in layers if not isinstance(layer, str)][-1]
        self.classifier = nn.Sequential(
            nn.Linear(width * grid * grid, hidden[0]),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden[1], classes),
        )
        self._initialise(linear_std)

    def _initialise(self, linear_std: float | None) -> None:
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
        """Classify images (batch, channels, height, width): logits (batch, classes)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


@with_inputs("vgg-digits")
def vgg_digits() -> VGG:
    """Build the VGG for grey 8x8 digits, 1.1 million parameters.

    ``classifier.0`` (448 x 1536) holds 62 % of them, as VGG-19's holds 71 %: it is the specific layer.  The fully
    connected layers differ in shape, so that none of them is grouped; the two runs of three equal convolutions are.
    Dropout is off, so that two runs differ by nothing but the gradients' treatment.
    """
    layers = (48, 48, 48, 48, POOL, 96, 96, 96, 96)
    return VGG(layers, grid=4, hidden=(448, 128), classes=10, channels=1, dropout=0.0)


@with_inputs("vgg19")
def vgg19() -> VGG:
    """Build VGG-19 with batch normalisation for 224x224 images of 1000 classes, 143.7 million parameters.

    The paper trains exactly this on the 32x32 images of CIFAR-100 (its Table 1 has the size).
    """
    return _imagenet((2, 2, 4, 4, 4))


@with_inputs("vgg16-imagenet")
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
