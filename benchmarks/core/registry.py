"""Registry of models, tasks, observations and data sets by name, one line each. Imports nothing, so listing is free.

`resireduce.scheme.load` imports what a line names, as "module:object".
"""

MODELS: dict[str, str] = {
    "resnet50": "benchmarks.training.models.convolutional:resnet50",
    "resnet50-imagenet": "benchmarks.training.models.convolutional:resnet50_imagenet",
    "vgg19": "benchmarks.training.models.convolutional:vgg19",
    "bert-base": "benchmarks.training.models.bert:bert_base",
    "bert-large": "benchmarks.training.models.bert:bert_large",
    "gpt2-medium": "benchmarks.training.models.gpt2:gpt2_medium",
    "gpt2-large": "benchmarks.training.models.gpt2:gpt2_large",
    "resnet20": "benchmarks.training.models.convolutional:resnet20",
    "resnet110": "benchmarks.training.models.convolutional:resnet110",
    "resnet152-imagenet": "benchmarks.training.models.convolutional:resnet152_imagenet",
    "vgg16-imagenet": "benchmarks.training.models.convolutional:vgg16_imagenet",
    "vit-large": "benchmarks.training.models.vit:vit_large",
    "resnet-digits": "benchmarks.training.models.convolutional:resnet_digits",
    "vgg-digits": "benchmarks.training.models.convolutional:vgg_digits",
    "gpt2-bytes": "benchmarks.training.models.gpt2:gpt2_bytes",
    "gpt2-small-bytes": "benchmarks.training.models.gpt2:gpt2_small_bytes",
    "bert-questions": "benchmarks.training.models.bert:bert_questions",
}
"""Model zoo. A builder takes no arguments and makes the model on the caller's default device (also `meta`), with the
global random numbers that the caller has seeded."""

TASKS: dict[str, str] = {
    "digits": "benchmarks.training.tasks.images:Digits",
    "bytes": "benchmarks.training.tasks.texts:BytePairs",
    "questions": "benchmarks.training.tasks.questions:Questions",
    "cifar": "benchmarks.training.tasks.images:Cifar",
    "imagenet": "benchmarks.training.tasks.images:ImageNet",
    "imagenet-half": "benchmarks.training.tasks.images:ImageNetHalf",
    "squad": "benchmarks.training.tasks.squad_task:Squad",
    "wikitext": "benchmarks.training.tasks.texts:WikiText",
}
"""Tasks. A class takes a `benchmarks.training.tasks.task.Setting` and keeps the promises of the `Task` there."""

OBSERVATIONS: dict[str, str] = {
    "distributions": "benchmarks.training.observe.distributions:distributions",
}
"""Additional observations after training. A function takes the trained model and its optimizer, on rank 0 after the
last step, and returns a mapping of plain values for the record. It changes neither."""

WATCHES: dict[str, str] = {
    "contraction": "benchmarks.training.observe.contraction:Contraction",
}
"""Additional observations during training. A class takes rank 0's optimizer, before the first step, and the number of
steps; `begin_step` announces each, and `end` returns a mapping of plain values for the record. It changes nothing."""

DATASETS: dict[str, str] = {
    "cifar10": "benchmarks.data.cifar:CIFAR10",
    "cifar100": "benchmarks.data.cifar:CIFAR100",
    "imagenet": "benchmarks.data.imagenet:IMAGENET",
    "squad": "benchmarks.data.squad:SQUAD",
    "wikitext-2": "benchmarks.data.wikitext:WIKITEXT_2",
    "wikitext-103": "benchmarks.data.wikitext:WIKITEXT_103",
    "bert-vocabulary": "benchmarks.data.published_weights:BERT_VOCABULARY",
    "gpt2-vocabulary": "benchmarks.data.published_weights:GPT2_VOCABULARY",
    "bert-base-weights": "benchmarks.data.published_weights:BERT_BASE",
    "bert-large-weights": "benchmarks.data.published_weights:BERT_LARGE",
    "gpt2-medium-weights": "benchmarks.data.published_weights:GPT2_MEDIUM",
    "gpt2-large-weights": "benchmarks.data.published_weights:GPT2_LARGE",
    "vit-large-weights": "benchmarks.data.published_weights:VIT_LARGE",
}
"""Data sets and pretrained weights that recipes name: `python -m benchmarks data` lists, checks and prepares them."""
