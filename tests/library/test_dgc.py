"""DGC in full: what its momentum correction, masking, warm-up and half precision must do."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from resireduce.compressors.dgc import DGC, DGCMomentum, DGCSimple
from resireduce.compressors.topk import TopK
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.pieces import generator
from tests.worlds import Given, averages, distributed

SHAPES = {"matrix": (110, 100), "vector": (100,)}
"""One is compressed, and one sent dense."""


def walk(compressor: DGC, gradients: list[dict[str, torch.Tensor]]) -> tuple[Given, DistributedOptimizer]:
    """Steps in which the gradient is what is given."""
    model = Given(**SHAPES)
    optimizer = distributed(model, lr=1.0, compressor=compressor)
    for grads in gradients:
        averages(model, optimizer, grads)
    return model, optimizer


def draws(steps: int) -> list[dict[str, torch.Tensor]]:
    source = torch.Generator().manual_seed(0)
    return [
        {name: torch.randn(shape, generator=source, dtype=torch.float64) for name, shape in SHAPES.items()}
        for _ in range(steps)
    ]


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_is_sent_and_what_is_kept_are_all_velocities(nesterov: bool) -> None:
    gradients = draws(6)
    model, optimizer = walk(DGC(0.05, momentum_factor=0.9, nesterov=nesterov, masking=False), gradients)
    for name in ("matrix", "vector"):
        velocity = total = torch.zeros(())
        for grads in gradients:
            velocity = 0.9 * velocity + grads[name]
            total = total + (grads[name] + 0.9 * velocity if nesterov else velocity)
        left = optimizer.residual_state_dict().get(f"full.{name}", 0)
        torch.testing.assert_close(left - model.get_parameter(name).detach(), total, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(optimizer.residual_state_dict()[f"momentum.{name}"], velocity)


def test_a_velocity_is_zero_where_it_was_sent_by_default() -> None:
    model = Given(**SHAPES)
    optimizer = distributed(model, lr=1.0, compressor=DGC(0.05, momentum_factor=0.9))
    velocity = torch.zeros(SHAPES["matrix"], dtype=torch.float64)
    for grads in draws(4):
        sent = averages(model, optimizer, grads)["matrix"] != 0
        velocity = (0.9 * velocity + grads["matrix"]).masked_fill(sent, 0.0)
        assert sent.any()
        torch.testing.assert_close(optimizer.residual_state_dict()["momentum.matrix"], velocity)


def test_an_object_has_the_density_of_each_step() -> None:
    """With the paper's first densities (section 3.3), two steps each: as where each step has its own compressor."""
    stages, gradients = (0.25, 0.0625, 0.015625, 0.004), draws(10)
    model, optimizer = Given(**SHAPES), None
    warmed = DGC(0.001, momentum_factor=0.9, nesterov=True, half=True)
    optimizer = distributed(model, lr=1.0, compressor=warmed, density=lambda step: [*stages, 0.001][step // 2])
    residual, velocity = torch.zeros(SHAPES["matrix"], dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step, grads in enumerate(gradients):
        fixed = replace(warmed, density=[*stages, 0.001][step // 2])
        velocity = 0.9 * velocity + grads["matrix"]
        residual = residual + grads["matrix"] + 0.9 * velocity
        payload = fixed.compress(residual, "matrix/0", step)
        sent = fixed.decompress(payload)
        count = int((sent != 0).sum())
        assert 0.7 * fixed.density * 11_000 <= count <= fixed.density * 11_000
        assert torch.equal(averages(model, optimizer, grads)["matrix"], sent)
        residual, velocity = residual - sent, velocity.masked_fill(sent != 0, 0.0)


@pytest.mark.parametrize("kind", [TopK, DGC, DGCMomentum])
def test_half_precision_keeps_what_rounding_takes(kind: type[DGC]) -> None:
    grad = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    grad[0, 0], grad[0, 1] = 1e6, -1e-9
    compressor = kind(0.02, half=True)
    payload = compressor.compress(grad, "w", 0)
    assert payload.nbytes == pytest.approx(6 * payload.layout[0][1], abs=8)
    sent, error = compressor.decompress(payload), compressor.error_(grad.clone(), payload)
    assert torch.equal(sent + error, grad)
    assert sent[0, 0] == 65504 and error[0, 0] == 1e6 - 65504
    where = compressor.sent_indices(payload)
    narrow = compressor.compress(grad.bfloat16(), "w", 0)
    assert compressor.decompress(narrow).isfinite().all(), "the nearest bfloat16 is beyond what half precision holds"
    assert 0 < error.view(-1)[where[1:]].abs().max() < 2**-10 * grad.view(-1)[where[1:]].abs().max()


def by_the_rule(values: np.ndarray, sample: np.ndarray, density: float, rounds: int) -> np.ndarray:
    """Which elements the simplified DGC sends, from its definition; `sample`: the magnitudes that were drawn."""
    magnitudes, wanted = np.abs(values), density * len(values)
    threshold = np.sort(sample)[-max(1, math.floor(0.01 * wanted))]
    for _ in range(rounds):
        passing = np.count_nonzero(magnitudes >= threshold)
        if 0.7 * wanted <= passing <= 1.3 * wanted:
            break
        threshold = np.float32(threshold * np.float32(1.3 if passing > wanted else 0.7))
    return np.flatnonzero(magnitudes >= threshold)


@pytest.mark.parametrize("rounds", [10, 2, 0])
@pytest.mark.parametrize("density", [0.001, 0.0137, 0.3])
@pytest.mark.parametrize("n", [190, 1_999, 10_090, 123_457])
def test_the_simple_form_follows_its_rule(n: int, density: float, rounds: int) -> None:
    drawn = torch.randn(n, generator=torch.Generator().manual_seed(n))
    for step, power in ((0, 1), (1, 1), (2, 3), (3, 5)):  # heavier tails each time
        flat = drawn**power
        places = torch.randint(n, (max(1, n // 100),), generator=generator(flat.device, "w", step))
        expected = by_the_rule(flat.numpy(), flat[places].abs().numpy(), density, rounds)
        if len(expected):
            assert DGCSimple(density, rounds=rounds).select(flat, "w", step).tolist() == expected.tolist()
