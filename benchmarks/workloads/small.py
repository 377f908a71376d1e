"""The small models of `make run`: data that come with installed packages, minutes on two cores."""

from benchmarks.workloads.recipe import Workload

# Learning rates were chosen so that the models can tell residual schemes apart: dense training needs the whole run to
# converge. At higher ones (the VGG at 0.01, the BERT at 2e-4) training without residuals ended about as well as with
# them, in trials; results/reference/tell.json has what was measured with these.
SMALL = (
    Workload(
        model="resnet-digits",
        task="digits",
        optimizer="sgd",
        learning_rate=0.01,
        steps=160,
        batch_per_rank=8,
        schedule="cosine",
        evaluate_every=40,
    ),
    Workload(
        model="vgg-digits",
        task="digits",
        optimizer="sgd",
        learning_rate=0.001,
        steps=200,
        batch_per_rank=16,
        schedule="cosine",
        evaluate_every=50,
    ),
    Workload(
        model="gpt2-bytes",
        task="bytes",
        optimizer="adamw",
        learning_rate=1e-4,
        steps=200,
        batch_per_rank=4,
        evaluate_every=50,
        pretrain_steps=400,
        pretrain_batch=12,
        pretrain_learning_rate=1e-3,
    ),
    Workload(
        model="bert-questions",
        task="questions",
        optimizer="adamw",
        learning_rate=1e-4,
        steps=200,
        batch_per_rank=6,
        evaluate_every=50,
        pretrain_steps=400,
        pretrain_batch=16,
        pretrain_learning_rate=1e-3,
    ),
)
