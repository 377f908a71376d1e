"""Whole algorithms that remember from step to step, in NumPy from their papers, against training of three ranks."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy.fft import dctn, idctn
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.adtopk import ADTopKThreshold
from resireduce.compressors.base import Compressor
from resireduce.compressors.signs import Signum
from resireduce.contrib.demo import DeMo
from resireduce.scheme import GRADIENTS
from tests.threads import LocalWorld

Arrays = dict[str, np.ndarray]
Rank = Iterator[np.ndarray]

SHAPES = {"matrix": (100, 131), "filters": (12, 30, 5, 6), "bias": (7,)}
COMPRESSED = ("matrix", "filters")
RANKS, STEPS, ETA, DENSITY = 3, 9, 0.1, 0.05


def gradients_of(rank: int, step: int) -> Arrays:
    """Of a mean that stays, as a gradient has in training."""
    mean, draw = np.random.default_rng(5), np.random.default_rng([rank, step])
    return {name: mean.standard_normal(shape) + draw.standard_normal(shape) for name, shape in SHAPES.items()}


def start() -> Arrays:
    draw = np.random.default_rng(99)
    return {name: draw.standard_normal(shape) for name, shape in SHAPES.items()}


# --- what a rank sends of one tensor, a gradient after the other ---


def cut(size: int) -> tuple[int, int]:
    """Parts of at most 64, as few as possible and as equal, and what each has."""
    count = -(-size // 64)
    return count, -(-size // count)


def fast_components(m: np.ndarray) -> np.ndarray:
    """The k largest coefficients of each tile's cosine transform, transformed back."""
    matrix = m.reshape(m.shape[0], -1)
    (rows, height), (columns, width) = map(cut, matrix.shape)
    k = max(1, int(DENSITY * height * width + 1e-9))
    padded = np.zeros((rows * height, columns * width))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    for i in range(rows):
        for j in range(columns):
            tile = padded[i * height : (i + 1) * height, j * width : (j + 1) * width]
            coefficients = dctn(tile, norm="ortho")
            coefficients.flat[np.argsort(-np.abs(coefficients), axis=None)[k:]] = 0
            tile[:] = idctn(coefficients, norm="ortho")
    return padded[: matrix.shape[0], : matrix.shape[1]].reshape(m.shape)


def demo(gradients: Iterator[np.ndarray]) -> Rank:
    """m <- beta m + g; q: its fast components; m <- m - q (algorithm 1)."""
    m = 0.0
    for g in gradients:
        m = 0.9 * m + g
        q = fast_components(m)
        m = m - q
        yield q


def signum(gradients: Iterator[np.ndarray]) -> Rank:
    """m <- beta m + (1 - beta) g; its sign."""
    m = 0.0
    for g in gradients:
        m = 0.8 * m + 0.2 * g
        yield np.where(m < 0, -1.0, 1.0)


def largest(x: np.ndarray) -> np.ndarray:
    """Which are the k = floor(density n) of largest magnitude."""
    chosen = np.zeros(x.shape, bool)
    chosen.flat[np.argsort(-np.abs(x), axis=None)[: int(DENSITY * x.size + 1e-9)]] = True
    return chosen


def largest_of_rows(x: np.ndarray) -> np.ndarray:
    """Which are the largest of dimension 1, for every index of the others."""
    order = np.argsort(np.argsort(-np.abs(x), axis=1), axis=1)
    return order < max(1, int(DENSITY * x.shape[1] + 1e-9))


def adtopk_threshold(gradients: Iterator[np.ndarray]) -> Rank:
    """Two exact steps, then every third one; what reaches the threshold between; rows in the last quarter of 8."""
    r, threshold, change = 0.0, np.inf, np.inf
    for step, g in enumerate(gradients):
        r = r + g
        if step >= 6 and change <= 0.25:
            chosen = largest_of_rows(r)
        elif step >= 2 and step % 3:
            chosen = np.abs(r) >= threshold
        else:
            chosen = largest(r)
            least = np.abs(r[chosen]).min()
            threshold, change = least, abs(least - threshold) / threshold if np.isfinite(threshold) else np.inf
        yield np.where(chosen, r, 0)
        r = np.where(chosen, 0, r)


def mean(sent: list[np.ndarray]) -> np.ndarray:
    return sum(sent) / RANKS


def majority(sent: list[np.ndarray]) -> np.ndarray:
    return np.where(sum(sent) >= 0, 1.0, -1.0)


def velocities(gradients: Iterator[np.ndarray], factor: float) -> Rank:
    """What is sent dense of momentum that is formed on each rank, as the library has it."""
    u = 0.0
    for g in gradients:
        u = factor * u + g
        yield u


THRESHOLD = ADTopKThreshold(DENSITY, warm_up=2, every=3, steps=8, stable=0.25)
ALGORITHMS: dict[str, tuple[Compressor, dict, Callable, Callable, float]] = {
    "demo": (DeMo(DENSITY), {"scheme": "decayed", "options": {"decay": 0.9}}, demo, mean, 0.0),
    "signum": (Signum(0.8), {"scheme": "none"}, signum, majority, 0.8),
    "adtopk-threshold": (THRESHOLD, {"scheme": "baseline"}, adtopk_threshold, mean, 0.0),
}
"""Compressor, other settings, the algorithm, what ranks' messages come to, momentum of what is sent dense."""


def series(rank: int, tensor: str) -> Iterator[np.ndarray]:
    """The gradients of one tensor on one rank."""
    return (gradients_of(rank, step)[tensor] for step in range(STEPS))


def expected(name: str) -> Arrays:
    _, _, algorithm, combine, factor = ALGORITHMS[name]
    x = start()
    for tensor in SHAPES:
        ranks = [series(rank, tensor) for rank in range(RANKS)]
        if tensor in COMPRESSED:
            sent, come_to = zip(*map(algorithm, ranks), strict=True), combine
        else:
            sent, come_to = zip(*(velocities(one, factor) for one in ranks), strict=True), mean
        for each in sent:
            x[tensor] = x[tensor] - ETA * come_to(each)
    return x


def trained(communicator: Communicator, name: str, gradients: str) -> Arrays:
    """Parameters after the same steps by the library."""
    model = nn.ParameterDict({tensor: torch.from_numpy(values) for tensor, values in start().items()})
    compressor, options, *_ = ALGORITHMS[name]
    wrapped = torch.optim.SGD(model.parameters(), ETA)
    optimizer = resireduce.distribute(
        model, wrapped, compressor=compressor, backend=communicator, gradients=gradients, **options
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        given = gradients_of(communicator.rank, step)
        sum((model[tensor] * torch.from_numpy(values)).sum() for tensor, values in given.items()).backward()
        optimizer.step()
    return {tensor: parameter.detach().numpy() for tensor, parameter in model.items()}


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_what_the_paper_says(name: str, gradients: str) -> None:
    wanted = expected(name)
    for one in LocalWorld(RANKS).run(lambda rank: trained(rank, name, gradients)):
        for tensor in SHAPES:
            np.testing.assert_allclose(one[tensor], wanted[tensor], rtol=1e-12, atol=1e-12, err_msg=tensor)
