"""A Hugging Face configuration is planned as the model that transformers builds from it, or refused in one line."""

import json
import sys
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
GPT2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 500}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # is set by the command, and must not outlast the test


def written(folder: Path, content: Any) -> str:
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
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


BAD = [
    (None, (), "cannot be read: No such file or directory; give the config.json of a Hugging Face model"),
    ("{", (), "is not JSON: "),
    ({"architectures": []}, (), "is no configuration of a Hugging Face model; give the config.json"),
    ({"model_type": "no-such"}, (), "the model_type 'no-such' is not known to transformers 5"),
    ({**BERT, "architectures": ["MyBert"]}, (), "the architecture 'MyBert' is no model of transformers 5"),
    ({**LLAMA, "quantization_config": {"bits": 4}}, (), "has a quantization_config: "),
    ({**LLAMA, "num_hidden_layers": "three"}, (), "cannot be built: "),
    (LLAMA, ("hidden_sizes=3",), "'hidden_sizes' is not known (did you mean 'hidden_size'?); allowed: "),
]


@pytest.mark.parametrize(("content", "arguments", "message"), BAD)
def test_what_is_no_such_configuration_is_one_line(capsys, tmp_path, content, arguments, message):
    file = str(tmp_path / "none.json") if content is None else written(tmp_path, content)
    given = [text for argument in arguments for text in ("--arg", argument)]
    said = refused(capsys, "plan", "--model", file, *given)
    assert repr(file) in said and message in said


def test_without_transformers_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = refused(capsys, "plan", "--model", written(tmp_path, LLAMA))
    assert "needs the package transformers, which cannot be imported" in said and "pip install transformers" in said
