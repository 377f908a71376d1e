"""What is sent of every element in few bits: signs, ternary values, powers of two, levels of blocks."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resireduce
from docs.build_compressors import UNBIASED
from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.quantized import Block4, Block8, Natural, TernGrad
from resireduce.compressors.signs import EFSignSGD, OneBit, SignSGD
from resireduce.scheme import COMPRESSORS, build_compressor
from tests.tensors import gradient
from tests.threads import LocalWorld

NUMELS = (1, 7, 8, 9, 64, 65, 1000, 40_001)
BITS = {"signsgd": 1, "signum": 1, "ef-signsgd": 1, "onebit": 1, "terngrad": 2, "block4": 4, "natural": 8, "block8": 8}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def sent_by(compressor: Compressor, grad: Tensor, step: int = 0) -> Tensor:
    return compressor.decompress(compressor.compress(grad, "w", step))


# --- formulas ---


@pytest.mark.parametrize("numel", NUMELS)
def test_signs_with_a_mean(numel: int) -> None:
    grad = gradient(numel)
    grad[numel // 2] = 0
    x = grad.numpy().astype(np.float64)
    np.testing.assert_allclose(sent_by(EFSignSGD(), grad), np.where(x < 0, -1, 1) * np.abs(x).mean(), rtol=1e-6)
    below, rest = (x[part].mean() if part.any() else 0 for part in (x < 0, x >= 0))
    np.testing.assert_allclose(sent_by(OneBit(), grad), np.where(x < 0, below, rest), rtol=1e-6)


def test_ternary_values_are_drawn_by_magnitude_and_clipped() -> None:
    grad = gradient(20_000)
    grad[:4] = torch.tensor([50.0, -50.0, 0.0, -0.0])
    x = grad.numpy().astype(np.float64)
    s = float(np.float32(2.5 * np.sqrt(np.mean(x**2))))
    sent = sent_by(TernGrad(), grad).numpy()
    assert set(np.unique(sent).tolist()) == {-s, 0.0, s} and sent[:2].tolist() == [s, -s]
    assert not sent[2:4].any() and (sent * x >= 0).all()
    kept = np.abs(np.clip(x, -s, s)) / s
    deviation = np.sqrt((kept * (1 - kept)).sum())
    assert abs((sent != 0).sum() - kept.sum()) < 5 * deviation
    np.testing.assert_allclose(np.abs(sent_by(TernGrad(clip=None), grad)).max(), 50)
    constant = torch.full((3, 4), -2.0)
    assert torch.equal(sent_by(TernGrad(), constant), constant), "what is all there is, is not clipped"


def test_powers_of_two_are_those_around_and_exact_ones_stay() -> None:
    grad = gradient(5000) * torch.logspace(-30, 30, 5000)
    sent = sent_by(Natural(), grad).double().numpy()
    x = grad.double().numpy()
    inside = np.abs(x) >= 2.0 ** (np.frexp(np.abs(x).max())[1] - 126)
    lower = 2.0 ** np.floor(np.log2(np.abs(x)))
    up = np.abs(sent) / lower == 2
    assert (up | (np.abs(sent) == lower))[inside].all() and 0.3 < up[inside].mean() < 0.6
    assert (sent * x >= 0).all() and np.isin(np.abs(sent[~inside]) / lower[~inside].max(), (0, 1, 2)).all()
    powers = torch.ldexp(torch.ones(100), torch.arange(-90, 10)) * torch.tensor([1, -1]).repeat(50)
    assert torch.equal(sent_by(Natural(), powers), powers)


@pytest.mark.parametrize(("compressor", "most"), [(Block8(), 127), (Block4(), 7), (Block4(block=8), 7)])
@pytest.mark.parametrize("numel", [1, 7, 255, 256, 257, 40_001])
def test_levels_of_blocks(compressor: Block8, most: int, numel: int) -> None:
    grad = gradient(numel)
    expected = []
    for first in range(0, numel, compressor.block):
        x = grad[first : first + compressor.block].numpy()
        largest = np.abs(x).max()
        expected.append(np.round(x / largest * most) / most * largest)
    sent = sent_by(compressor, grad).numpy()
    far = np.abs(sent - np.concatenate(expected))
    assert np.quantile(far, 0.999) < 1e-5, "but for ties of rounding"
    step = np.repeat([np.abs(part).max() for part in expected], [len(part) for part in expected]) / most
    assert (np.abs(sent - grad.numpy()) <= step / 2 * (1 + 1e-4)).all()


@pytest.mark.parametrize("name", UNBIASED)
def test_what_is_said_to_be_unbiased_is(name: str) -> None:
    grad, compressor = gradient(500), build_compressor(name, 0.1)
    draws = torch.stack([sent_by(compressor, grad.clone(), step) for step in range(300)])
    error = 5 * draws.std(0) / math.sqrt(300) + 1e-6
    assert ((draws.mean(0) - grad).abs() <= error + 0.01 * grad.abs().max() * (draws.std(0) == 0)).all()


# --- votes ---


@pytest.mark.parametrize("world_size", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_majority_decides_and_a_tie_is_positive(world_size: int, dtype: torch.dtype) -> None:
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=world_size)), dtype=dtype).T.contiguous()
    expected = torch.where(signs.sum(0) >= 0, 1.0, -1.0).to(dtype)

    payloads = [SignSGD().compress(one / 3, "w", 0) for one in signs]
    assert torch.equal(SignSGD().combine_(torch.empty_like(expected), payloads, 1 / world_size), expected)


def test_a_tensor_of_zeros_does_not_vote() -> None:
    grads = (torch.zeros(20), gradient(20), torch.zeros(20))
    payloads = [SignSGD().compress(grad, "w", 0) for grad in grads]
    voted = SignSGD().combine_(torch.empty(20), payloads, 1 / 3)
    assert torch.equal(voted, grads[1].sign())
    assert not SignSGD().combine_(torch.empty(20), payloads[::2], 1 / 2).any()


# --- sizes and extremes ---


@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize("name", BITS)
def test_bits_are_packed(name: str, numel: int) -> None:
    payload = build_compressor(name, 0.1).compress(gradient(numel), "w", 0)
    beside = {"signsgd": 1, "signum": 1, "onebit": 8, **dict.fromkeys(("block4", "block8"), 4 * -(-numel // 256))}
    exact = -(-numel // 8) * BITS[name] if BITS[name] < 8 else numel
    assert payload.nbytes == -(-(exact + beside.get(name, 4)) // 8) * 8


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_the_smallest_values_stay_finite(dtype: torch.dtype, name: str) -> None:
    compressor, info = build_compressor(name, 0.5), torch.finfo(dtype)
    signs = gradient(130).sign().to(dtype)
    for size in (info.max, info.tiny, info.smallest_normal * info.eps):
        kinds = (signs * size, (signs * size).where(signs > 0, 0), signs[:1] * size, (signs * size)[0])
        for grad in (one for one in kinds if compressor.compresses(one.shape)):
            payload = compressor.compress(grad.contiguous(), "w", 0)
            assert compressor.decompress(payload).isfinite().all()
            assert compressor.error_(grad.clone(), payload).isfinite().all()


def test_ranks_round_independently_of_one_another() -> None:
    def work(communicator: Communicator) -> Tensor:
        model = nn.Linear(100, 100, bias=False)
        nn.init.zeros_(model.weight)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = resireduce.distribute(model, sgd, scheme="none", compressor="natural", backend=communicator)
        (1.5 * model.weight).sum().backward()
        optimizer.step()
        return -model.weight.detach()

    one, other = LocalWorld(2).run(work)
    assert torch.equal(one, other)
    assert set(one.unique().tolist()) == {1.0, 1.5, 2.0}  # 1.5 is 1 on one rank, and 2 on the other
