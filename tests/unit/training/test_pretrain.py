"""Dense pretraining: what it writes, that it repeats itself, and what it refuses."""

import dataclasses

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training import pretrain


def run(tmp_path, *arguments: str) -> int:
    return main(["data", "pretrain", *arguments, "--output", str(tmp_path / "weights" / "model.pt")])


@pytest.fixture
def short(monkeypatch):
    workload = dataclasses.replace(WORKLOADS["bert-questions"], pretrain_steps=3, pretrain_batch=2)
    monkeypatch.setitem(WORKLOADS, "bert-questions", workload)
    return workload


def test_weights_are_written_and_can_be_loaded_safely(tmp_path, short, capsys):
    assert run(tmp_path, "--model", "bert-questions", "--threads", "1") == 0
    (file,) = (tmp_path / "weights").iterdir()
    state = torch.load(file, weights_only=True)
    assert state["bert.embeddings.word_embeddings.weight"].shape == (768, 128)
    assert "step 3/3" in capsys.readouterr().out


def test_training_repeats_itself_and_leaves_the_global_generator_alone(short):
    before = torch.get_rng_state()
    first, second = (pretrain.pretrain(short, lambda line: None) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gpt2-byte"), "model: 'gpt2-byte' is not known (did you mean 'gpt2-bytes'?)"),
        (("--model", "vgg-digits"), "model: 'vgg-digits' starts from scratch"),
        (("--model", "gpt2-bytes", "--threads", "0"), "threads: 0 is not allowed; give a whole number, 1 to 1024"),
    ],
)
def test_wrong_input_is_refused_before_any_training(tmp_path, arguments, message, capsys):
    assert run(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (tmp_path / "weights").exists()
