"""The six workloads of the ResiReduce paper (Table 1, section 5), as its released scripts train them.

What those scripts do that is a defect is off here, and can be asked for by the names in `released`.
"""

from benchmarks.workloads.recipe import Workload

FIXED_ORDER = "every epoch goes through the samples in the same order"
BATCH_MEANS = "accuracy is the mean over batches, the last of which is smaller, and of rank 0's shard alone"
LONG_WARMUP = "planned steps are those of one rank, so that warm-up takes most of the training and decay hardly begins"
RANK_PERPLEXITY = "perplexity is the exponential of the mean over batches of rank 0's shard alone"
WIKITEXT_2 = "trains on WikiText-2; the paper says WikiText-103"


def _image(model: str) -> Workload:
    return Workload(
        model=model,
        task="cifar",
        data="cifar100",
        optimizer="sgd",
        learning_rate=0.0125,
        rate_per_rank=True,
        weight_decay=5e-5,
        epochs=80,
        warmup_epochs=5,
        schedule="steps",
        milestones=(30, 60),
        batch_per_rank=32,
        released={"batch-means": BATCH_MEANS},
    )


def _bert(model: str) -> Workload:
    return Workload(
        model=model,
        task="squad",
        data="squad",
        weights=f"{model}-weights",
        vocabulary="bert-vocabulary",
        optimizer="bert-adam",
        learning_rate=3e-5,
        weight_decay=0.01,
        no_decay=("*.bias", "*.LayerNorm.weight"),
        epochs=4,
        warmup_share=0.1,
        schedule="linear",
        batch_per_rank=4,
        length=384,
        positions=512,
        released={"long-warmup": LONG_WARMUP, "fixed-order": FIXED_ORDER},
    )


def _gpt2(model: str) -> Workload:
    return Workload(
        model=model,
        task="wikitext",
        data="wikitext-103",
        weights=f"{model}-weights",
        optimizer="adamw",
        learning_rate=5e-5,
        epochs=2,
        schedule="linear",
        batch_per_rank=2,
        length=1024,
        positions=1024,
        released={"rank-perplexity": RANK_PERPLEXITY, "fixed-order": FIXED_ORDER, "wikitext-2": WIKITEXT_2},
    )


PAPER = (
    _image("resnet50"),
    _image("vgg19"),
    _bert("bert-base"),
    _bert("bert-large"),
    _gpt2("gpt2-medium"),
    _gpt2("gpt2-large"),
)
