"""A Hugging Face configuration is planned as the model that transformers builds from it, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from resireduce.plan import plan
from tests.library.test_main import planned, refused

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
BERT = {"model_type": "bert", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 500}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 500,
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # is set by the command, and must not outlast the test


def written(folder: Path, content: Any) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(content))
    return str(file)


@pytest.mark.parametrize(
    ("content", "build"),
    [
        (LLAMA, lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))),
        (BERT, lambda: transformers.BertModel(transformers.BertConfig(**BERT))),
        (GPT2, lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))),
    ],
)
def test_a_configuration_is_planned_as_its_model(capsys, tmp_path, content, build):
    file = written(tmp_path, content)
    assert planned(capsys, "--model", file) == planned(capsys, "--model", str(tmp_path)) == plan(build)


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}, (), "has a quantization_config: "),
        (LLAMA, ("--arg", "hidden_sizes=3"), "'hidden_sizes' is not known (did you mean 'hidden_size'?); allowed: "),
    ],
)
def test_what_would_be_planned_wrongly_is_refused(capsys, tmp_path, content, arguments, message):
    assert message in refused(capsys, "plan", "--model", written(tmp_path, content), *arguments)
