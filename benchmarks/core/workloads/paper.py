"""The six workloads of the ResiReduce paper (Table 1, section 5), as its released scripts train them.

Defects of those scripts are off here, and can be requested by the names in `released`.
"""

from functools import partial

from benchmarks.core.workloads.recipe import IMAGES, Workload

FIXED_ORDER = "every epoch goes through the samples in the same order"
BATCH_MEANS = "accuracy is the mean over batches, the last of which is smaller, and of rank 0's shard alone"
LONG_WARMUP = "planned steps are those of one rank, so that warm-up takes most of the training and decay hardly begins"
RANK_PERPLEXITY = "perplexity is the exponential of the mean over batches of rank 0's shard alone"
WIKITEXT_2 = "trains on WikiText-2; the paper says WikiText-103"

_image = partial(
    IMAGES,
    task="cifar",
    data="cifar100",
    learning_rate=0.0125,
    weight_decay=5e-5,
    epochs=80,
    schedule="steps",
    milestones=(30, 60),
    batch_per_rank=32,
    released={"batch-means": BATCH_MEANS},
)
_bert = partial(
    Workload,
    task="squad",
    data="squad",
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
_gpt2 = partial(
    Workload,
    task="wikitext",
    data="wikitext-103",
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
    _image(model="resnet50"),
    _image(model="vgg19"),
    _bert(model="bert-base", weights="bert-base-weights"),
    _bert(model="bert-large", weights="bert-large-weights"),
    _gpt2(model="gpt2-medium", weights="gpt2-medium-weights"),
    _gpt2(model="gpt2-large", weights="gpt2-large-weights"),
)
