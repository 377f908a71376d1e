"""What a cell is trained with: weights, optimizer, compressor, dropout, and the released code's defects."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import PAPER, READMES, WORKLOADS, Schedule
from benchmarks.training import pretrain
from benchmarks.training.build import build, make_density, make_model, make_task, rank_seed
from benchmarks.training.optimizers import BertAdam, make_optimizer
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.dgc import DGC
from resireduce.compressors.topk import TopK
from resireduce.errors import ConfigError
from resireduce.scheme import load
from tests.prepared import save_cifar, save_prepared, save_wikitext
from tests.threads import LocalWorld
from tests.unit.training.test_models import on_meta


def small(model: str = "resnet20", **change) -> Cell:
    return Cell(**{"model": model, "data": "synthetic", "backend": "local", "world_size": 1, "steps": 1} | change)


def schedule(model: str, world_size: int = 8, **options) -> Schedule:
    return Schedule(WORKLOADS[model], samples=100_000, world_size=world_size, **options)


# Pretrained weights


def save_weights(root, tensors: dict[str, torch.Tensor]) -> None:
    save_prepared("x-weights", root, {"model.safetensors": save(tensors)}, missing=[])


def test_a_cell_with_real_data_starts_from_the_recipes_weights_and_a_synthetic_one_does_not(tmp_path, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "resnet20", dataclasses.replace(WORKLOADS["resnet20"], weights="x-weights"))
    model = load(MODELS["resnet20"])()
    save_weights(tmp_path, {name: torch.full_like(p, 0.5) for name, p in model.named_parameters()})
    for data in ("real", "synthetic"):
        made = make_model(small(data=data), None, tmp_path)
        assert all(parameter.eq(0.5).all() for parameter in made.parameters()) == (data == "real")


# Optimizer and compressor


@pytest.mark.parametrize("model", [workload.model for workload in (*PAPER, *READMES)])
def test_optimizer_and_weight_decay_are_the_recipes(model):
    workload, built = WORKLOADS[model], on_meta(model)
    names = {id(parameter): name for name, parameter in built.named_parameters()}
    optimizer = make_optimizer(workload, built)
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    assert isinstance(optimizer, kinds.get(workload.optimizer, BertAdam))
    groups = optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len(names)
    spared = {names[id(p)] for group in groups if not group["weight_decay"] for p in group["params"]}
    if not workload.no_decay:
        assert spared == (set() if workload.weight_decay else set(names.values()))
        return
    norm = nn.BatchNorm2d if workload.optimizer == "sgd" else nn.LayerNorm
    norms = [name for name, one in built.named_modules() if isinstance(one, norm)]
    biases = {name for name in names.values() if name.endswith(".bias") and workload.optimizer != "sgd"}
    assert spared == {f"{name}.{part}" for name in norms for part in ("weight", "bias")} | biases


def test_a_cell_that_names_the_recipes_own_optimizer_and_rate_is_the_cell_without():
    recipe = WORKLOADS["vgg-digits"]
    own = {name: getattr(recipe, name) for name in ("optimizer", "learning_rate", "schedule")}
    cell = Cell(model="vgg-digits", **own)
    assert cell == Cell(model="vgg-digits") and cell.workload == recipe
    assert Cell(model="vgg-digits", optimizer="rmsprop", learning_rate=0.25).name.endswith(".rmsprop.lr0.25.s0")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("optimizer", "lamb", "plain-sgd"),
        ("learning_rate", float("inf"), "a finite number greater than 0"),
        ("schedule", "steps", "cosine"),
        ("length", 513, "give a whole number, 8 to 512"),
    ],
)
def test_what_a_cell_cannot_have_of_its_own_is_refused(field, value, allowed):
    with pytest.raises(ConfigError, match=f"^{field}: .*{allowed}"):
        Cell(model="bert-base" if field == "length" else "vgg-digits", **{field: value})


def test_dgc_warms_its_density_up_by_epochs():
    steps = schedule("resnet110").steps_per_epoch
    cell = small("resnet110", compressor="dgc", density=0.01)
    density = make_density(cell, schedule("resnet110"), DGC(0.01))
    found = [density(step) for step in (0, steps - 1, steps, 2 * steps, 3 * steps, 4 * steps, 5 * steps)]
    assert found == [0.25, 0.25, 0.0625, 0.015625, 0.01, 0.01, 0.01]
    assert make_density(cell, schedule("resnet110"), TopK(0.01)) == 0.01
    assert make_density(small("resnet50", compressor="dgc"), schedule("resnet50"), DGC(0.01)) == 0.01


# Prepared data


class Line(nn.Sequential):
    """A linear classifier of CIFAR's images that starts from zeros."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


def test_two_ranks_train_on_prepared_images_as_one_does(tmp_path, monkeypatch):
    save_cifar(tmp_path, "cifar10", train=40, test=31)
    monkeypatch.setitem(MODELS, "resnet20", "tests.unit.training.test_build:Line")
    monkeypatch.setitem(WORKLOADS, "resnet20", dataclasses.replace(WORKLOADS["resnet20"], rate_per_rank=False))

    def trained(communicator):
        cell = small(
            data="real", compressor="none", scheme="none", steps=7, batch_per_rank=8 // communicator.world_size
        )
        trainer = build(cell, communicator, None, tmp_path)
        trainer.train()
        return trainer.model[1].weight.detach(), trainer.metrics, trainer.history

    with torch.random.fork_rng(devices=[]):
        alone, metrics, history = trained(LocalCommunicator())
        (first, *said), (second, *_) = LocalWorld(2).run(trained)
    assert alone.abs().max() > 0
    assert torch.equal(first, second)
    assert torch.allclose(alone, first, atol=1e-5)
    assert said == [metrics, history]
    assert [step for step, _ in history] == [5, 7], "after an epoch of 5 steps, and at the end"


# What the released code did otherwise


def test_long_warmup_takes_most_of_the_training():
    # 88,000 windows in batches of 4 on 8 ranks, 4 epochs: planned as if one rank took them all.
    bert = WORKLOADS["bert-base"]
    right = Schedule(bert, 88_000, 8)
    released = Schedule(bert, 88_000, 8, plans_single_rank=True)
    assert right.steps == released.steps == 11_000
    assert (right.warmup_steps, released.warmup_steps) == (1100, 8800)
    assert right.learning_rate_at(10_999) < 1e-8
    assert released.learning_rate_at(10_999) == pytest.approx(2.9e-5, rel=0.01)


@pytest.mark.parametrize("released", [[], ["fixed-order"]])
def test_fixed_order_repeats_the_first_epochs_and_what_is_drawn_depends_on_the_seed(monkeypatch, released):
    monkeypatch.setitem(MODELS, "gpt2-medium", "tests.unit.training.test_build:Line")
    options = {"length": 8, "batch_per_rank": 4096, "released": released, "compressor": "none", "scheme": "none"}

    def drawn(communicator, seed: int = 0):
        trainer = build(small("gpt2-medium", seed=seed, **options), communicator, None, Path("data"))
        return torch.rand(3).tolist(), trainer

    with torch.random.fork_rng(devices=[]):
        (first, trainer), (again, _), (other, _) = (drawn(LocalCommunicator(), seed) for seed in (0, 0, 1))
    batches = trainer.indices()
    assert first == again != other
    one, two = (torch.cat([next(batches), next(batches)]) for _ in range(2))
    assert torch.equal(one.sort().values, two.sort().values)
    assert torch.equal(one, two) == bool(released)


def test_wikitext_2_is_read_and_asked_for_in_place_of_103(tmp_path, capsys):
    spec, splits = tmp_path / "cell.json", {split: (np.arange(20), [0, 20]) for split in ("train", "validation")}
    save_wikitext(tmp_path, splits, name="wikitext-2")
    released = Cell(model="gpt2-medium", released=["wikitext-2"], length=8)
    assert len(make_task(released, tmp_path)) == 2
    for cell, missing in ((released, "gpt2-medium-weights"), (Cell(model="gpt2-medium", length=8), "wikitext-103")):
        spec.write_text(json.dumps(cell.to_dict()))
        assert main(["run", "--cell", str(spec), "--output", str(tmp_path / "out.json"), "--data", str(tmp_path)]) == 2
        assert f"'{missing}' is not prepared" in capsys.readouterr().err


class Drops(nn.Module):
    """A model with dropout, whose output tells the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return nn.functional.dropout(torch.ones(40), 0.5) + 0 * self.linear.weight.sum()


def dropping(communicator, seed: int = 0):
    trainer = build(small(seed=seed), communicator, None, Path("data"))
    return trainer.model.linear.weight.detach().clone(), trainer.model(None).detach()


def test_dropout_is_the_same_each_time_and_depends_on_seed_and_rank_while_weights_are_equal(monkeypatch):
    monkeypatch.setitem(MODELS, "resnet20", "tests.unit.training.test_build:Drops")
    with torch.random.fork_rng(devices=[]):
        (weight, mask), (same_weight, same_mask) = (dropping(LocalCommunicator()) for _ in range(2))
        assert torch.equal(weight, same_weight) and torch.equal(mask, same_mask)
        assert not torch.equal(mask, dropping(LocalCommunicator(), seed=1)[1])
        (first, _), (second, _) = LocalWorld(2).run(dropping)
    assert torch.equal(first, second)
    assert len({rank_seed(seed, rank) % 2**32 for seed in range(5) for rank in range(64)}) == 5 * 64


SHAPES = ((30, 20), (7,), (2, 3, 4))


def in_numpy(start: list, grads: list[list], lrs: list[float], decay: float, limit: float) -> list:
    """The formula in float64: no correction of bias, each gradient clipped on its own."""
    values = [value.astype(np.float64) for value in start]
    means, squares = ([np.zeros_like(value) for value in values] for _ in range(2))
    for lr, step_grads in zip(lrs, grads, strict=True):
        for i, grad in enumerate(step_grads):
            g = grad.astype(np.float64)
            norm = np.sqrt((g**2).sum())
            g = g * (limit / norm) if norm > limit else g
            means[i] = 0.9 * means[i] + 0.1 * g
            squares[i] = 0.999 * squares[i] + 0.001 * g**2
            values[i] = values[i] - lr * (means[i] / (np.sqrt(squares[i]) + 1e-6) + decay * values[i])
    return values


@pytest.mark.parametrize("case", range(4))
def test_steps_follow_the_formula(case):
    generator = np.random.default_rng(case)
    scale, decay, limit = 10.0 ** generator.integers(-3, 2), float(case % 2) * 0.01, float(generator.choice([1.0, 0.3]))
    start = [generator.standard_normal(shape) for shape in SHAPES]
    grads = [[scale * generator.standard_normal(shape) for shape in SHAPES] for _ in range(6)]
    lrs = generator.uniform(1e-4, 1e-1, 6).tolist()
    parameters = [nn.Parameter(torch.tensor(value)) for value in start]
    optimizer = BertAdam(parameters, lr=1.0, weight_decay=decay, max_norm=limit)
    for lr, step_grads in zip(lrs, grads, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        for parameter, grad in zip(parameters, step_grads, strict=True):
            parameter.grad = torch.tensor(grad)
        optimizer.step()
    # 1e-6 beside the norm keeps the quotient finite, so that clipped gradients are a millionth smaller.
    for found, expected in zip(parameters, in_numpy(start, grads, lrs, decay, limit), strict=True):
        assert np.allclose(found.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


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
