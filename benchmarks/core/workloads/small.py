"""Models whose data come with installed packages: the small ones of `make run`, and one that takes an hour."""

from functools import partial

from benchmarks.core.workloads.recipe import Workload

_digits = partial(Workload, task="digits", optimizer="sgd", schedule="cosine")
_text = partial(
    Workload,
    optimizer="adamw",
    learning_rate=1e-4,
    steps=200,
    evaluate_every=50,
    pretrain_steps=400,
    pretrain_learning_rate=1e-3,
)
# Learning rates were chosen so that the models can tell residual schemes apart: dense training needs the whole run to
# converge. In trials at higher rates (the VGG at 0.01, the BERT at 2e-4), training without residuals ended about as
# well as with them; results/reference/tell.json has the measurements at these rates.
SMALL = (
    _digits(model="resnet-digits", learning_rate=0.01, steps=160, batch_per_rank=8, evaluate_every=40),
    _digits(model="vgg-digits", learning_rate=0.001, steps=200, batch_per_rank=16, evaluate_every=50),
    _text(model="gpt2-bytes", task="bytes", batch_per_rank=4, pretrain_batch=12),
    _text(model="bert-questions", task="questions", batch_per_rank=6, pretrain_batch=16),
)

# At a sixth of the best learning rate of gpt2-bytes, which is a sixth as wide.
LARGER = (
    Workload(
        model="gpt2-small-bytes",
        task="bytes",
        optimizer="adamw",
        learning_rate=5e-4,
        steps=500,
        warmup_steps=50,
        schedule="cosine",
        batch_per_rank=2,
        evaluate_every=50,
    ),
)
