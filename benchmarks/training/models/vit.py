"""Vision transformers (Dosovitskiy et al., ICLR 2021), with torchvision's attribute names."""

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from benchmarks.training.models.example import give_inputs


class EncoderLayer(nn.Module):
    """Self-attention and a perceptron, each behind a layer norm and beside a shortcut: (batch, length, width)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        # Published weights have number 3 for the second layer, behind dropout.
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Identity(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    """Adds positions, and applies the layers ``layers.encoder_layer_0``, ``_1``, ..."""

    def __init__(self, length: int, layers: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, length, width).normal_(std=0.02))
        each = ((f"encoder_layer_{i}", EncoderLayer(width, heads, hidden)) for i in range(layers))
        self.layers = nn.Sequential(OrderedDict(each))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(x + self.pos_embedding))


class VisionTransformer(nn.Module):
    """Classifies an image by a token that attends to its patches.

    Args:
        size: height and width of the images, a multiple of `patch`.
        patch: height and width of a patch.
        layers, width, heads, hidden: of the encoder; `hidden` is the perceptrons' inner width.
    """

    def __init__(
        self, *, size: int, patch: int, layers: int, width: int, heads: int, hidden: int, classes: int
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = Encoder((size // patch) ** 2 + 1, layers, width, heads, hidden)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / self.conv_proj.weight[0].numel()))
        nn.init.zeros_(self.conv_proj.bias)  # type: ignore[arg-type]
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and ".mlp." in name:
                nn.init.xavier_uniform_(module.weight)
                nn.init.normal_(module.bias, std=1e-6)
        for parameter in self.heads.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(x), -1, -1), patches), dim=1)
        return self.heads(self.encoder(tokens)[:, 0])


def vit_large() -> VisionTransformer:
    """Build ViT-L/16 for 224x224 images of 1000 classes, 304.3 million parameters."""
    return VisionTransformer(size=224, patch=16, layers=24, width=1024, heads=16, hidden=4096, classes=1000)


give_inputs(__name__)
