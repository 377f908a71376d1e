"""Converts parameters of published checkpoints to the names and shapes of our model builders.

Imports no torch when it is loaded.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

OLD = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"), (".dense_act.", ".dense."))
"""Names in BERT files from TensorFlow, and of perceptrons in NVIDIA's files -> present names."""
_BERT_UNUSED = re.compile(r"(bert\.pooler|cls)\.|bert\.embeddings\.position_ids$")
_GPT2_MASK = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)$")
_VIT_UNUSED = re.compile(r"pooler\.")
VIT_NAMES = (
    (r"embeddings\.cls_token", "class_token"),
    (r"embeddings\.position_embeddings", "encoder.pos_embedding"),
    (r"embeddings\.patch_embeddings\.projection\.", "conv_proj."),
    (r"layernorm\.", "encoder.ln."),
    (r"classifier\.", "heads.head."),
    (r"encoder\.layer\.(\d+)\.layernorm_before\.", r"encoder.layers.encoder_layer_\1.ln_1."),
    (r"encoder\.layer\.(\d+)\.layernorm_after\.", r"encoder.layers.encoder_layer_\1.ln_2."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"encoder.layers.encoder_layer_\1.self_attention.out_proj."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"encoder.layers.encoder_layer_\1.mlp.0."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"encoder.layers.encoder_layer_\1.mlp.3."),
    (r"(encoder\.layers\.encoder_layer_\d+\.mlp)\.linear_1\.", r"\1.0."),
    (r"(encoder\.layers\.encoder_layer_\d+\.mlp)\.linear_2\.", r"\1.3."),
)
"""The hub's names, and the older ones of torchvision's perceptrons -> torchvision's."""
_QUERY = re.compile(r"encoder\.layer\.(\d+)\.attention\.attention\.query\.(weight|bias)")


def bert(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Add the prefix to names, replace old ones, and leave out the pooler and the pretraining heads."""
    renamed: dict[str, Tensor] = {}
    for given, tensor in weights.items():
        name = given
        for old, new in OLD:
            name = name.replace(old, new)
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        if not _BERT_UNUSED.match(name):
            renamed[name] = tensor
    return renamed


def gpt2(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Add the prefix to names; leave out the causal masks and the output layer, which is the embedding.

    Raises:
        ValueError: if the output layer has values of its own.
    """
    renamed: dict[str, Tensor] = {}
    for given, tensor in weights.items():
        name = f"transformer.{given}" if re.match(r"(wte|wpe|h\.\d+|ln_f)\.", given) else given
        if not _GPT2_MASK.match(name):
            renamed[name] = tensor
    head, embedding = renamed.pop("lm_head.weight", None), renamed.get("transformer.wte.weight")
    if head is not None and embedding is not None and not head.equal(embedding):
        raise ValueError("'lm_head.weight' is not equal to the embedding, which the model shares with it")
    return renamed


def vit(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Turn the hub's names into torchvision's, with query, key and value in one tensor; leave out the pooler."""
    import torch

    bare = {name.removeprefix("vit."): tensor for name, tensor in weights.items()}
    renamed: dict[str, Tensor] = {}
    for name, tensor in bare.items():
        query = _QUERY.fullmatch(name)
        if query:
            parts = [bare.get(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                layer, kind = query.groups()
                joined = torch.cat([part for part in parts if part is not None])
                renamed[f"encoder.layers.encoder_layer_{layer}.self_attention.in_proj_{kind}"] = joined
        elif not _VIT_UNUSED.match(name) and not re.search(r"\.attention\.attention\.(key|value)\.", name):
            renamed[_vit_name(name)] = tensor
    return renamed


def _vit_name(name: str) -> str:
    for old, new in VIT_NAMES:
        if re.match(old, name):
            return re.sub(f"^{old}", new, name)
    return name
