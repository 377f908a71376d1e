"""Pretrained weights: files as the hub and torchvision publish them become those of our own models."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2Model,
    ViTConfig,
    ViTModel,
)

from benchmarks.data.published_weights import BERT_BASE, BERT_LARGE, GPT2_LARGE, GPT2_MEDIUM, VIT_LARGE
from benchmarks.training.models.bert import _bert
from benchmarks.training.models.gpt2 import _gpt2
from benchmarks.training.models.vit import VisionTransformer
from resireduce.errors import ConfigError
from tests.published import prepared, unpublished, write

WIDTH, LAYERS = 16, 2
VIT = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 32}
VIT |= {"image_size": 32, "patch_size": 16, "layer_norm_eps": 1e-6}
BERT_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BERT_SIZES |= {"vocab_size": 42, "max_position_embeddings": 80}


def bert_small() -> torch.nn.Module:
    return _bert(48, 80, WIDTH, LAYERS, heads=2, dropout=0.1)


def gpt2_small() -> torch.nn.Module:
    return _gpt2(60, 80, WIDTH, LAYERS, heads=2, dropout=0.1)


def vit_small() -> VisionTransformer:
    return VisionTransformer(size=32, patch=16, layers=LAYERS, width=WIDTH, heads=2, hidden=32, classes=5)


SMALL_BERT = unpublished(
    BERT_BASE, model=f"{__name__}:bert_small", padded={"bert.embeddings.word_embeddings.weight": 42}
)
SMALL_GPT2 = unpublished(GPT2_MEDIUM, model=f"{__name__}:gpt2_small")
SMALL_VIT = unpublished(VIT_LARGE, model=f"{__name__}:vit_small")


def bert_published() -> dict[str, torch.Tensor]:
    model = BertForPreTraining(BertConfig(**BERT_SIZES))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def gpt2_model():
    return GPT2Model(GPT2Config(vocab_size=60, n_positions=80, n_embd=WIDTH, n_layer=LAYERS, n_head=2)).eval()


def gpt2_published() -> dict[str, torch.Tensor]:
    """Names as in the hub's files, which hold the causal masks."""
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 80, 80).tril() for layer in range(LAYERS)}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(LAYERS)}
    return {name: tensor.clone() for name, tensor in gpt2_model().state_dict().items()} | masks


def saved(folder, weights):
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    return folder


def loaded(result, model, missing=()):
    """Load what was prepared into our model; return it in evaluation mode."""
    weights = load_file(result.folder / "model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    assert result.manifest["missing"] == list(missing)
    absent, unexpected = model.load_state_dict(weights, strict=False)
    assert set(absent) - {"lm_head.weight"} == set(missing)
    assert unexpected == []
    return model.eval()


def test_bert_s_words_are_padded_with_zeros_and_its_heads_left_out(tmp_path):
    published = bert_published()
    result = prepared("bert-base-weights", SMALL_BERT, saved(tmp_path / "from", published), tmp_path)
    model = loaded(result, bert_small(), missing=["qa_outputs.weight", "qa_outputs.bias"])
    words = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(words[:42], published["bert.embeddings.word_embeddings.weight"])
    assert not words[42:].any()
    ids = torch.arange(20)[None]
    theirs = BertForPreTraining(BertConfig(**BERT_SIZES)).eval()
    theirs.load_state_dict(published)
    assert torch.equal(model.bert(ids)[0], theirs.bert(ids)[0])


def test_old_names_and_half_precision_hold_the_same_bert(tmp_path):
    published = {name: tensor.bfloat16() for name, tensor in bert_published().items()}
    first = prepared("bert-base-weights", SMALL_BERT, saved(tmp_path / "a", published), tmp_path / "first")
    old = {}
    for name, tensor in published.items():
        renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[renamed] = tensor.float()
    old["bert.embeddings.position_ids"] = torch.arange(80)[None]
    second = prepared("bert-base-weights", SMALL_BERT, saved(tmp_path / "b", old), tmp_path / "second")
    assert first.hash == second.hash


def test_gpt2_without_masks(tmp_path):
    published = gpt2_published()
    result = prepared("gpt2-medium-weights", SMALL_GPT2, saved(tmp_path / "from", published), tmp_path)
    ours, theirs, ids = loaded(result, gpt2_small()), gpt2_model(), torch.arange(30)[None]
    theirs.load_state_dict(published, strict=False)
    assert torch.allclose(ours.transformer(ids)[0], theirs(ids)[0], atol=1e-5)


def test_the_hub_s_vit_gives_the_same_as_torchvision_s_form(tmp_path):
    theirs = ViTModel(ViTConfig(**VIT)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    theirs.save_pretrained(tmp_path / "from")
    assert "encoder.layer.0.attention.attention.query.weight" in load_file(tmp_path / "from" / "model.safetensors")
    result = prepared("vit-large-weights", SMALL_VIT, tmp_path / "from", tmp_path)
    ours = loaded(result, vit_small(), missing=["heads.head.weight", "heads.head.bias"])
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(ours(images), ours.heads(theirs(images).last_hidden_state[:, 0]), atol=1e-5)


FULL = {
    "bert-base": (BERT_BASE, lambda: BertForPreTraining(BertConfig())),
    "bert-large": (
        BERT_LARGE,
        lambda: BertForPreTraining(
            BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        ),
    ),
    "gpt2-medium": (GPT2_MEDIUM, lambda: GPT2Model(GPT2Config(n_embd=1024, n_layer=24, n_head=16))),
    "gpt2-large": (GPT2_LARGE, lambda: GPT2Model(GPT2Config(n_embd=1280, n_layer=36, n_head=20))),
}


@pytest.mark.parametrize("name", FULL)
def test_names_and_shapes_at_full_size(name):
    dataset, build = FULL[name]
    with torch.device("meta"):
        fitted = dataset.fit(dataset.rename(build().state_dict()))
    assert [one for one in dataset.parameters() if one not in fitted] == (
        ["qa_outputs.weight", "qa_outputs.bias"] if name.startswith("bert") else []
    )


POSITIONS = "bert.embeddings.position_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({POSITIONS: torch.zeros(79, 16)}, f"'{POSITIONS}' is torch.float32 of shape (79, 16), allowed is (80, 16)"),
        ({POSITIONS: torch.full((80, 16), torch.nan)}, f"'{POSITIONS}' holds NaN or infinity"),
        ({POSITIONS: None}, f"'{POSITIONS}' of {SMALL_BERT.model} is missing"),
        ({"bert.extra": torch.zeros(1)}, f"'bert.extra' is no parameter of {SMALL_BERT.model}"),
        ("bert", "Error while deserializing header"),
    ],
)
def test_wrong_weights_are_named_in_one_line(tmp_path, change, message):
    if isinstance(change, str):
        source = write(tmp_path / "from", {"model.safetensors": change})
    else:
        weights = {name: tensor for name, tensor in (bert_published() | change).items() if tensor is not None}
        source = saved(tmp_path / "from", weights)
    with pytest.raises(ConfigError, match=f"model.safetensors: {re.escape(message)}") as caught:
        prepared("bert-base-weights", SMALL_BERT, source, tmp_path / "root")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "root").iterdir())
