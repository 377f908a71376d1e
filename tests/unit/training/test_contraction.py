"""What a cell can observe of compression along training, against NumPy, and that looking changes nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.core.cell import Cell
from benchmarks.training.observe.contraction import LEAST, Contraction
from benchmarks.training.rank import run_rank
from resireduce.comm.local import LocalCommunicator
from resireduce.scheme import SCHEMES
from tests.worlds import Net, distributed, loss_of, same, seeded

SHAPES = {"one": (100, 110), "two": (120, 130), "bias": (9,)}
STEPS, DENSITY = 2 * LEAST + 1, 0.05


def gradients_of(step: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {name: draw.standard_normal(shape) * (i + 1) for i, (name, shape) in enumerate(SHAPES.items())}


def watched(**options: object) -> dict[str, object]:
    """What is seen of steps with these gradients."""
    model = nn.ParameterDict({name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()})
    optimizer = distributed(model, density=DENSITY, **options)
    places = optimizer.feedback.residual, optimizer.feedback.communicator
    watch = Contraction(optimizer, STEPS)
    for step in range(STEPS):
        watch.begin_step(step)
        optimizer.zero_grad()
        sum((model[name] * torch.from_numpy(values)).sum() for name, values in gradients_of(step).items()).backward()
        optimizer.step()
    seen = watch.end()
    assert (optimizer.feedback.residual, optimizer.feedback.communicator) == places
    return seen


def expected(feeds_back: bool) -> list[dict[str, float]]:
    """Top-k of both matrices, with and without error feedback, a step after the other."""
    left = {name: np.zeros(SHAPES[name]) for name in ("one", "two")}
    points = []
    for step in range(STEPS):
        whole, sent = [], []
        for name, residual in left.items():
            x = gradients_of(step)[name] + residual * feeds_back
            places = np.argsort(-np.abs(x).ravel())[: int(DENSITY * x.size + 1e-9)]
            q = np.zeros(x.size)
            q[places] = x.ravel()[places]
            left[name] = x - q.reshape(x.shape)
            whole, sent = [*whole, x.ravel()], [*sent, q]
        x, q = np.concatenate(whole), np.concatenate(sent)
        found = {"contraction": ((x - q) ** 2).sum() / (x**2).sum(), "density": np.count_nonzero(q) / x.size}
        points.append(found | {"cosine": x @ q / np.linalg.norm(x) / np.linalg.norm(q)})
    return points


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("scheme", ["baseline", "none"])
def test_what_is_seen_is_what_the_definitions_say(scheme: str, gradients: str) -> None:
    seen, wanted = watched(scheme=scheme, gradients=gradients), expected(scheme == "baseline")
    assert seen["every"] == LEAST and seen["dense_bytes"] == 9 * 8
    assert [point["step"] for point in seen["points"]] == [1, 1 + LEAST, 1 + 2 * LEAST]
    for point in seen["points"]:
        assert point["elements"] == 11_000 + 15_600
        for name, value in wanted[point["step"] - 1].items():
            assert point[name] == pytest.approx(value, rel=1e-9), name
        payloads, presence = (550 + 780) * (8 + 4), point["bytes"] - 9 * 8 - (550 + 780) * (8 + 4)
        assert 0 < presence < 200 < payloads, "and what ranks tell one another of which gradients there are"


@pytest.mark.parametrize("compressor", ["topk", "dgc-momentum"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_looking_changes_nothing(scheme: str, compressor: str) -> None:
    trained = []
    for watches in (False, True):
        model, generator = seeded(Net), torch.Generator().manual_seed(3)
        optimizer = distributed(model, density=DENSITY, scheme=scheme, compressor=compressor, gradients="streamed")
        watch = Contraction(optimizer, 6) if watches else None
        for step in range(6):
            if watch:
                watch.begin_step(step)
            optimizer.zero_grad()
            loss_of(model, generator).backward()
            optimizer.step()
        assert watch is None or len(watch.end()["points"]) == 2
        trained.append((model, optimizer.residual_state_dict()))
    (plain, before), (seen, after) = trained
    assert same(plain, seen)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_cell_has_it_in_its_record(own_settings: None) -> None:
    cell = Cell(model="vgg-digits", backend="local", world_size=1, steps=6, scheme="w+2d", observe=["contraction"])
    outcome = run_rank(cell, LocalCommunicator(), None, Path("data"))
    assert outcome.status == "ok", outcome.reason
    points = outcome.observations["contraction"]["points"]
    assert [point["step"] for point in points] == [1, 6] and all(0 < point["contraction"] < 1 for point in points)
