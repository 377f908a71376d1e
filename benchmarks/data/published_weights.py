"""Pretrained weights, with the names and shapes of our own models. Imports no torch when it is loaded.

Prepared: `model.safetensors`, float32; the manifest's `missing` lists the parameters that stay random.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data.dataset import Dataset, Report, first_line, forms_of
from resireduce.scheme import load

if TYPE_CHECKING:
    from torch import Tensor

BERT_NAMES = {
    r"LayerNorm\.gamma": "LayerNorm.weight",
    r"LayerNorm\.beta": "LayerNorm.bias",
    r"\.dense_act\.": ".dense.",
    r"^(embeddings|encoder|pooler)\.": r"bert.\1.",
}
"""Names in files from TensorFlow, of perceptrons in NVIDIA's files, and without the prefix -> present names."""
LAYER = "encoder.layers.encoder_layer_"
VIT_NAMES = {
    r"^embeddings\.cls_token": "class_token",
    r"^embeddings\.position_embeddings": "encoder.pos_embedding",
    r"^embeddings\.patch_embeddings\.projection\.": "conv_proj.",
    r"^layernorm\.": "encoder.ln.",
    r"^classifier\.": "heads.head.",
    r"^encoder\.layer\.(\d+)\.layernorm_before\.": rf"{LAYER}\1.ln_1.",
    r"^encoder\.layer\.(\d+)\.layernorm_after\.": rf"{LAYER}\1.ln_2.",
    r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.": rf"{LAYER}\1.self_attention.out_proj.",
    r"^encoder\.layer\.(\d+)\.intermediate\.dense\.": rf"{LAYER}\1.mlp.0.",
    r"^encoder\.layer\.(\d+)\.output\.dense\.": rf"{LAYER}\1.mlp.3.",
    r"^(encoder\.layers\.encoder_layer_\d+\.mlp)\.linear_1\.": r"\1.0.",
    r"^(encoder\.layers\.encoder_layer_\d+\.mlp)\.linear_2\.": r"\1.3.",
}
"""The hub's names, and the older ones of torchvision's perceptrons -> torchvision's."""
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
    """Add the prefix to names, replace old ones, and leave out the pooler and the pretraining heads."""
    return _renamed(weights, BERT_NAMES, r"(bert\.pooler|cls)\.|bert\.embeddings\.position_ids$")


def gpt2(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Add the prefix to names; leave out the causal masks and the output layer, which is the embedding.

    Raises ValueError if the output layer has values of its own.
    """
    masks = r"transformer\.h\.\d+\.attn\.(bias|masked_bias)$"
    renamed = _renamed(weights, {r"^(wte|wpe|h\.\d+|ln_f)\.": r"transformer.\1."}, masks)
    head, embedding = renamed.pop("lm_head.weight", None), renamed.get("transformer.wte.weight")
    if head is not None and embedding is not None and not head.equal(embedding):
        raise ValueError("'lm_head.weight' is not equal to the embedding, which the model shares with it")
    return renamed


def vit(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Turn the hub's names into torchvision's, with query, key and value in one tensor; leave out the pooler."""
    import torch

    bare = {name.removeprefix("vit."): tensor for name, tensor in weights.items()}
    renamed = _renamed(bare, VIT_NAMES, r"pooler\.|.*\.attention\.attention\.(key\.|value\.|query\.(weight|bias)$)")
    for query in filter(None, map(QUERY.fullmatch, bare)):
        parts = [bare.get(query[0].replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        if all(part is not None for part in parts):
            joined = torch.cat([part for part in parts if part is not None])
            renamed[f"{LAYER}{query[1]}.self_attention.in_proj_{query[2]}"] = joined
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

    def prepare(self, files: Mapping[str, Path], target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Read the weights, check them against the model, and write them."""
        from safetensors.torch import save_file

        (path,) = files.values()
        report(f"reading {path.name}")
        published = _read(path)
        try:
            weights = self.fit(self.rename(published))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None
        for name, tensor in weights.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{path.name}: {name!r} holds NaN or infinity")
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

        Raises ValueError, one line, for the first name that is unknown or missing, or that has a wrong shape.
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
                fitted[name] = tensor.float().contiguous()
            elif not any(fnmatchcase(name, pattern) for pattern in self.random):
                raise ValueError(f"{name!r} of {self.model} is missing")
        return fitted


def _read(path: Path) -> dict[str, "Tensor"]:
    """Read tensors by name; a pickle may contain only tensors. Raises ValueError, one line, for any other file."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both formats raise whatever their parsers raise
        raise ValueError(
            f"{path.name} cannot be read as weights, and nothing in it was executed: {first_line(error)}"
        ) from None
    if not isinstance(values, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in values.values()):
        raise ValueError(f"{path.name} holds no tensors by name")
    # Tensors that share a storage cannot be written separately.
    return {name: one if one.nbytes == one.untyped_storage().nbytes() else one.clone() for name, one in values.items()}


BERT: dict[str, Any] = {
    "terms": "Apache-2.0",
    "rename": bert,
    "random": ("qa_outputs.*",),
    "padded": {"bert.embeddings.word_embeddings.weight": 30_522},
}
GPT2: dict[str, Any] = {"terms": "MIT, modified", "rename": gpt2}


def _on_hub(model: str, title: str, page: str, file: str = "- -", other: str = "", **more: Any) -> Weights:
    """Return the weights on a model's page on the hub: bytes and checksum of its `file`, and an `other` form."""
    forms = forms_of(f"model.safetensors {file}\n\npytorch_model.bin - -{other}")
    return Weights(model=model, title=title, address=f"https://huggingface.co/{page}/", forms=forms, **more)


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
    "ViT-L/16, pretrained on ImageNet-21k, or torchvision's on ImageNet",
    "google/vit-large-patch16-224-in21k/resolve/6074eaf2211423e928c93b93ef773d5da618aa7e",
    "- sha256:bb92f203dc94f76fa1eb2cd9e19016ab0cd8fef300da5cd2bf350800ef2a91b9",
    # The digits in torchvision's file names are the first of the SHA-256.
    "\n\nvit_l_16-852ce7e3.pth - sha256:852ce7e3",
    terms="Apache-2.0; torchvision's BSD-3-Clause",
    rename=vit,
    random=("heads.head.*",),
)
