"""Pretrained weights, with the names and shapes of our own models, and their vocabularies. Loads torch late."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data.dataset import Dataset, Report, files_of
from resireduce.scheme import load

if TYPE_CHECKING:
    from torch import Tensor

BERT_NAMES = {
    r"LayerNorm\.gamma": "LayerNorm.weight",
    r"LayerNorm\.beta": "LayerNorm.bias",
}
"""Names in files that were converted from TensorFlow -> present names."""
LAYER = "encoder.layers.encoder_layer_"
VIT_NAMES = {
    r"^embeddings\.cls_token": "class_token",
    r"^embeddings\.position_embeddings": "encoder.pos_embedding",
    r"^embeddings\.patch_embeddings\.projection\.": "conv_proj.",
    r"^layernorm\.": "encoder.ln.",
    r"^encoder\.layer\.(\d+)\.layernorm_before\.": rf"{LAYER}\1.ln_1.",
    r"^encoder\.layer\.(\d+)\.layernorm_after\.": rf"{LAYER}\1.ln_2.",
    r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.": rf"{LAYER}\1.self_attention.out_proj.",
    r"^encoder\.layer\.(\d+)\.intermediate\.dense\.": rf"{LAYER}\1.mlp.0.",
    r"^encoder\.layer\.(\d+)\.output\.dense\.": rf"{LAYER}\1.mlp.3.",
}
"""The hub's names -> torchvision's."""
QUERY = re.compile(r"encoder\.layer\.(\d+)\.attention\.attention\.query\.(weight|bias)")


def _renamed(weights: Mapping[str, "Tensor"], names: Mapping[str, str], unused: str) -> dict[str, "Tensor"]:
    """Return weights with each pattern in `names` replaced, without those that then begin with what is `unused`."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        for old, new in names.items():
            name = re.sub(old, new, name)  # noqa: PLW2901
        if not re.match(unused, name):
            renamed[name] = tensor
    return renamed


def bert(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Replace old names, and leave out the pooler and the pretraining heads."""
    return _renamed(weights, BERT_NAMES, r"(bert\.pooler|cls)\.|bert\.embeddings\.position_ids$")


def gpt2(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Add the prefix to names, and leave out the causal masks."""
    masks = r"transformer\.h\.\d+\.attn\.(bias|masked_bias)$"
    return _renamed(weights, {r"^(wte|wpe|h\.\d+|ln_f)\.": r"transformer.\1."}, masks)


def vit(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Turn the hub's names into torchvision's, with query, key and value in one tensor; leave out the pooler."""
    import torch

    weights = {name.removeprefix("vit."): tensor for name, tensor in weights.items()}
    renamed = _renamed(weights, VIT_NAMES, r"pooler\.|.*\.attention\.attention\.(key|value|query)\.")
    for query in filter(None, map(QUERY.fullmatch, weights)):
        parts = [weights[query[0].replace(".query.", f".{part}.")] for part in ("query", "key", "value")]
        renamed[f"{LAYER}{query[1]}.self_attention.in_proj_{query[2]}"] = torch.cat(parts)
    return renamed


PREPARED = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Weights(Dataset):
    """Weights of one of `benchmarks.core.registry.MODELS`, or of a "module:callable"."""

    model: str
    rename: Callable[[Mapping[str, "Tensor"]], dict[str, "Tensor"]]
    """Turns published names into ours."""
    random: tuple[str, ...] = ()
    """Shell patterns of parameters that the files need not have."""
    padded: Mapping[str, int] | None = None
    """Parameters that are published with fewer rows: name -> published rows. The remaining rows become zeros."""

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Read the weights, check them against the model, and write them."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file, save_file

        report(f"reading {PREPARED}")
        try:
            weights = self.fit(self.rename(load_file(source / PREPARED)))
        except (ValueError, SafetensorError) as error:
            raise ValueError(f"{PREPARED}: {error}") from None
        report(f"writing {PREPARED}")
        save_file(weights, target / PREPARED, metadata={"format": "pt"})
        missing = [name for name in self.parameters() if name not in weights]
        return {"model": self.model, "missing": missing, "count": sum(tensor.numel() for tensor in weights.values())}

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the model's parameters by name, each once, without making them."""
        import torch

        from benchmarks.core.registry import MODELS

        with torch.device("meta"):
            model = load(MODELS.get(self.model, self.model))()
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    def fit(self, weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """Return the weights in the model's order and shapes, in float32.

        Raises ValueError, one line, for the first name that is unknown or missing, of a wrong shape, or not finite.
        """
        import torch

        parameters = self.parameters()
        unknown = next((name for name in weights if name not in parameters), None)
        if unknown:
            raise ValueError(f"{unknown!r} is no parameter of {self.model}")
        fitted: dict[str, Tensor] = {}
        for name, shape in parameters.items():
            if name in weights:
                tensor = weights[name]
                if len(tensor.shape) and tensor.shape[0] == (self.padded or {}).get(name):
                    rows = tensor.new_zeros(shape[0] - tensor.shape[0], *tensor.shape[1:])
                    tensor = torch.cat([tensor, rows])
                if tuple(tensor.shape) != shape or not tensor.is_floating_point():
                    raise ValueError(f"{name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}, allowed is {shape}")
                if not tensor.is_meta and not tensor.isfinite().all():
                    raise ValueError(f"{name!r} holds NaN or infinity")
                fitted[name] = tensor.float().contiguous()
            elif not any(fnmatchcase(name, pattern) for pattern in self.random):
                raise ValueError(f"{name!r} of {self.model} is missing")
        return fitted


BERT: dict[str, Any] = {
    "terms": "Apache-2.0",
    "rename": bert,
    "random": ("qa_outputs.*",),
    "padded": {"bert.embeddings.word_embeddings.weight": 30_522},
}
GPT2: dict[str, Any] = {"terms": "MIT, modified", "rename": gpt2}


def _on_hub(model: str, title: str, page: str, file: str = "- -", **more: Any) -> Weights:
    """Return the weights on a model's page on the hub: bytes and checksum of its `file`."""
    files = files_of(f"{PREPARED} {file}")
    return Weights(model=model, title=title, address=f"https://huggingface.co/{page}/", files=files, **more)


BERT_BASE = _on_hub(
    "bert-base",
    "BERT-base, English in lower case, pretrained",
    "google-bert/bert-base-uncased/resolve/86b5e0934494bd15c9632b12f734a8a67f723594",
    "440_449_768 sha256:68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
    **BERT,
)
BERT_LARGE = _on_hub(
    "bert-large",
    "BERT-large, English in lower case, pretrained",
    "google-bert/bert-large-uncased/resolve/6da4b6a26a1877e173fca3225479512db81a5e5b",
    **BERT,
)
GPT2_MEDIUM = _on_hub(
    "gpt2-medium",
    "GPT-2 medium, pretrained",
    "openai-community/gpt2-medium/resolve/6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
    "1_519_984_962 sha256:fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd",
    **GPT2,
)
GPT2_LARGE = _on_hub(
    "gpt2-large",
    "GPT-2 large, pretrained",
    "openai-community/gpt2-large/resolve/32b71b12589c2f8d625668d2335a01cac3249519",
    "- sha256:5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce",
    **GPT2,
)
VIT_LARGE = _on_hub(
    "vit-large",
    "ViT-L/16, pretrained on ImageNet-21k",
    "google/vit-large-patch16-224-in21k/resolve/6074eaf2211423e928c93b93ef773d5da618aa7e",
    "- sha256:bb92f203dc94f76fa1eb2cd9e19016ab0cd8fef300da5cd2bf350800ef2a91b9",
    terms="Apache-2.0",
    rename=vit,
    random=("heads.head.*",),
)


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Dataset):
    """BERT's word pieces (Devlin et al., 2019), or GPT-2's byte pairs (Radford et al., 2019); prepared as published."""

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Copy the files."""
        for file in self.files:
            shutil.copyfile(source / file.name, target / file.name)
        return {}


GPT2_FILES = """
vocab.json 1_042_301 sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
merges.txt 456_318 sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
"""

BERT_VOCABULARY = Vocabulary(
    title="BERT's vocabulary: 30,522 word pieces of English in lower case",
    terms="Apache-2.0",
    address="https://huggingface.co/google-bert/bert-base-uncased/resolve/86b5e0934494bd15c9632b12f734a8a67f723594/",
    files=files_of("vocab.txt 231_508 sha256:07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
)
GPT2_VOCABULARY = Vocabulary(
    title="GPT-2's vocabulary: 50,257 byte pairs",
    terms="MIT, modified",
    address="https://huggingface.co/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/",
    files=files_of(GPT2_FILES),
)
