"""Dense pretraining: what it writes, that it repeats itself, and what it refuses."""

import dataclasses

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training import pretrain


def run(tmp_path, *arguments: str) -> int:
    return main(["data", "pretrain", *arguments, "--output", str(tmp_path / "weights" / "model.pt")])


def test_weights_are_written_and_are_the_same_each_time_whatever_the_global_generator(tmp_path, monkeypatch):
    short = dataclasses.replace(WORKLOADS["bert-questions"], pretrain_steps=3, pretrain_batch=2)
    monkeypatch.setitem(WORKLOADS, "bert-questions", short)
    assert run(tmp_path, "--model", "bert-questions", "--threads", "1") == 0
    (file,) = (tmp_path / "weights").iterdir()
    state, before = torch.load(file, weights_only=True), torch.get_rng_state()
    again = pretrain.pretrain(short, lambda line: None)
    assert torch.equal(before, torch.get_rng_state())
    assert state.keys() == again.keys() and all(torch.equal(state[name], again[name]) for name in state)


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
    assert capsys.readouterr().err.startswith(f"error: {message}") and not (tmp_path / "weights").exists()
