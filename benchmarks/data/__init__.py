"""Names of data sets and pretrained weights that recipes refer to, one line each. Imports no torch and no NumPy.

`python -m benchmarks data` lists, checks and prepares them; cells read what was prepared, and never download.
"""

DATASETS: dict[str, str] = {
    "cifar10": "benchmarks.data.cifar:CIFAR10",
    "cifar100": "benchmarks.data.cifar:CIFAR100",
    "imagenet": "benchmarks.data.imagenet:IMAGENET",
    "squad": "benchmarks.data.squad:SQUAD",
    "wikitext-2": "benchmarks.data.wikitext:WIKITEXT_2",
    "wikitext-103": "benchmarks.data.wikitext:WIKITEXT_103",
    "bert-vocabulary": "benchmarks.data.vocabularies:BERT",
    "gpt2-vocabulary": "benchmarks.data.vocabularies:GPT2",
    "bert-base-weights": "benchmarks.data.weights:BERT_BASE",
    "bert-large-weights": "benchmarks.data.weights:BERT_LARGE",
    "gpt2-medium-weights": "benchmarks.data.weights:GPT2_MEDIUM",
    "gpt2-large-weights": "benchmarks.data.weights:GPT2_LARGE",
    "vit-large-weights": "benchmarks.data.weights:VIT_LARGE",
}
"""Public name -> "module:object"."""
