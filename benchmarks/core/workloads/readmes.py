"""Quick-start jobs of the READMEs (ResiReduce, AD-Topk, RGMerge: ViT-large, ResNet-152), and DGC's own settings."""

from functools import partial

from benchmarks.core.workloads.recipe import IMAGES, Workload

DGC_WARMUP = (0.25, 0.0625, 0.015625, 0.004, 0.001)
"""Densities of the first five epochs, from DGC's paper and README."""
_cifar = partial(
    IMAGES,
    task="cifar",
    data="cifar10",
    learning_rate=0.1,
    weight_decay=1e-4,
    epochs=200,
    schedule="cosine",
    batch_per_rank=128,
    density_warmup=DGC_WARMUP,
)
_imagenet = partial(
    IMAGES,
    task="imagenet",
    data="imagenet",
    learning_rate=0.0125,
    epochs=90,
    schedule="steps",
    milestones=(30, 60, 80),
    batch_per_rank=32,
)
BATCH_NORM = ("*bn?.weight", "*bn?.bias", "*downsample.1.weight", "*downsample.1.bias")
_resnet = partial(_imagenet, weight_decay=1e-4, nesterov=True, no_decay=BATCH_NORM)

READMES = (
    _cifar(model="resnet20"),
    _cifar(model="resnet110"),
    _resnet(model="resnet50-imagenet"),
    _resnet(model="resnet152-imagenet"),
    _imagenet(model="vgg16-imagenet", weight_decay=5e-5),
    # As in the fine-tuning script of the READMEs: AdamW, three epochs, from weights pretrained on ImageNet-21k.
    Workload(
        model="vit-large",
        task="imagenet-half",
        data="imagenet",
        weights="vit-large-weights",
        optimizer="adamw",
        learning_rate=5e-5,
        epochs=3,
        schedule="linear",
        batch_per_rank=8,
    ),
)
