"""BertAdam against its formula in double precision."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.training.optimizers import BertAdam

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
