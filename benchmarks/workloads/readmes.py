"""Quick-start jobs of the READMEs (ResiReduce, AD-Topk, RGMerge: ViT-large, ResNet-152), and DGC's own settings."""

from benchmarks.workloads.recipe import Workload

DGC_WARMUP = (0.25, 0.0625, 0.015625, 0.004, 0.001)
"""Densities of the first five epochs, as DGC's paper and README have them."""


def _cifar(model: str) -> Workload:
    return Workload(
        model=model,
        task="cifar",
        data="cifar10",
        optimizer="sgd",
        learning_rate=0.1,
        rate_per_rank=True,
        weight_decay=1e-4,
        epochs=200,
        warmup_epochs=5,
        schedule="cosine",
        batch_per_rank=128,
        density_warmup=DGC_WARMUP,
    )


def _imagenet(model: str, weight_decay: float, **special: object) -> Workload:
    return Workload(
        model=model,
        task="imagenet",
        data="imagenet",
        optimizer="sgd",
        learning_rate=0.0125,
        rate_per_rank=True,
        weight_decay=weight_decay,
        epochs=90,
        warmup_epochs=5,
        schedule="steps",
        milestones=(30, 60, 80),
        batch_per_rank=32,
        **special,  # type: ignore[arg-type]
    )


BATCH_NORM = ("*bn?.weight", "*bn?.bias", "*downsample.1.weight", "*downsample.1.bias")

READMES = (
    _cifar("resnet20"),
    _cifar("resnet110"),
    _imagenet("resnet50-imagenet", 1e-4, nesterov=True, no_decay=BATCH_NORM),
    _imagenet("resnet152-imagenet", 1e-4, nesterov=True, no_decay=BATCH_NORM),
    _imagenet("vgg16-imagenet", 5e-5),
    # As the fine-tuning script that the READMEs start: AdamW, three epochs, from weights pretrained on ImageNet-21k.
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
