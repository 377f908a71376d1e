"""Public names of the model zoo, filled with one line per model: name -> "module:function".

A builder takes no arguments and makes the model on the caller's default device (also ``meta``) with the caller's global
random numbers.  This module imports nothing, so that naming a model costs no start-up time.
"""

MODELS: dict[str, str] = {
    "resnet50": "benchmarks.models.resnet:resnet50",
    "resnet50-imagenet": "benchmarks.models.resnet:resnet50_imagenet",
    "vgg19": "benchmarks.models.vgg:vgg19",
    "bert-base": "benchmarks.models.bert:bert_base",
    "bert-large": "benchmarks.models.bert:bert_large",
    "gpt2-medium": "benchmarks.models.gpt2:gpt2_medium",
    "gpt2-large": "benchmarks.models.gpt2:gpt2_large",
    "bert-base-pretraining": "benchmarks.models.bert:bert_base_pretraining",
    "bert-large-pretraining": "benchmarks.models.bert:bert_large_pretraining",
    "resnet20": "benchmarks.models.resnet:resnet20",
    "resnet110": "benchmarks.models.resnet:resnet110",
    "resnet152-imagenet": "benchmarks.models.resnet:resnet152_imagenet",
    "vgg16-imagenet": "benchmarks.models.vgg:vgg16_imagenet",
    "vit-large": "benchmarks.models.vit:vit_large",
    "resnet-digits": "benchmarks.models.resnet:resnet_digits",
    "vgg-digits": "benchmarks.models.vgg:vgg_digits",
    "gpt2-bytes": "benchmarks.models.gpt2:gpt2_bytes",
    "bert-questions": "benchmarks.models.bert:bert_questions",
}
