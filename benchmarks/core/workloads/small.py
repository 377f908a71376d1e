"""The small models of `make run`: data that come with installed packages, minutes on two cores."""

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
