"""Compressors that fit a threshold to their density: against NumPy and SciPy forms, and where fits go wrong."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from resireduce.compressors.packed import SparseCompressor
from resireduce.compressors.thresholds import (
    FITS,
    GaussianK,
    RedSync,
    RedSyncTrim,
    SIDCo,
    exponential,
    gamma,
    generalised_pareto,
    magnitudes,
    moments,
    not_above,
    values,
)
from resireduce.scheme import build_compressor

FITTED = ("gaussian", "redsync", "redsync-trim", "sidco-exp", "sidco-gp", "sidco-gamma")
N = 50_000


def drawn(kind: str, seed: int = 0, n: int = N) -> Tensor:
    source = np.random.default_rng(seed)
    make = {
        "normal": lambda: source.standard_normal(n),
        "shifted": lambda: source.standard_normal(n) + 0.3,
        "laplace": lambda: source.laplace(size=n),
        "t3": lambda: source.standard_t(3, size=n),
        "sparse": lambda: source.standard_normal(n) * (source.random(n) < 0.3),
    }
    return torch.from_numpy(make[kind]().astype(np.float32))


# --- the definitions, in NumPy ---


def gaussian(x: np.ndarray, k: int, density: float, rounds: int) -> np.ndarray:
    t = x.mean() + stats.norm.isf(density / 2) * x.std()
    for _ in range(rounds):
        count = (abs(x) > t).sum()
        if count < 2 * k / 3:
            t = 0.5 * t
        elif count > 4 * k / 3:
            t = 1.5 * t
    return abs(x) > t


def redsync(x: np.ndarray, k: int) -> np.ndarray:
    low, high, mean, most = 0.0, 1.0, abs(x).mean(), abs(x).max()
    while high - low > 0.2:
        r = low + (high - low) / 2
        mask = abs(x) > mean + r * (most - mean)
        if k < mask.sum() < 2 * k:
            break
        if mask.sum() < k / 2:
            high = r
        else:
            low = r
    return mask


def redsync_trim(x: np.ndarray, k: int) -> np.ndarray:
    mean, most = abs(x).mean(), abs(x).max()
    for r in (0.8, 0.6, 0.4, 0.2, 0.0):
        mask = abs(x) > mean + r * (most - mean)
        if mask.sum() >= k:
            break
    return mask


def sidco(x: np.ndarray, density: float, fit: str, stages: int) -> np.ndarray:
    x = abs(x) / np.linalg.norm(x)
    ratios = [density] if stages == 1 else [0.25, *[(density / 0.25) ** (1 / (stages - 1))] * (stages - 1)]
    rest, threshold = x, 0.0
    for stage, delta in enumerate(ratios):
        least = rest.min() if stage else 0.0
        y = rest - least
        mu, var = y.mean(), y.var()
        if fit == "exponential":
            border = -mu * np.log(delta)
        elif fit == "pareto" or stage:
            a, kappa = mu / 2 * (mu**2 / var + 1), (mu**2 / var - 1) / 2
            border = a * (1 - delta**kappa) / kappa
        else:
            s = np.log(mu) - np.log(y).mean()
            alpha = (3 - s + np.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
            border = -mu / alpha * (np.log(delta) + special.gammaln(alpha))
        threshold = least + border
        rest = rest[rest > threshold]
    return x > threshold


def forms(density: float, k: int) -> dict[str, tuple[SparseCompressor, Callable[[np.ndarray], np.ndarray]]]:
    found: dict[str, tuple[SparseCompressor, Callable[[np.ndarray], np.ndarray]]] = {
        f"gaussian {rounds}": (GaussianK(density, rounds=rounds), lambda x, r=rounds: gaussian(x, k, density, r))
        for rounds in (0, 1, 3, 4)
    }
    found |= {"redsync": (RedSync(density), lambda x: redsync(x, k))}
    found |= {"redsync-trim": (RedSyncTrim(density), lambda x: redsync_trim(x, k))}
    for fit in FITS:
        for stages in (1, 2, 3, 6):
            compressor = SIDCo(density, fit=fit, stages=stages)
            found[f"{fit} {stages}"] = compressor, lambda x, f=fit, m=stages: sidco(x, density, f, m)
    return found


@pytest.mark.parametrize("density", [0.1, 0.01])
@pytest.mark.parametrize("kind", ["normal", "shifted", "laplace", "t3"])
def test_what_is_sent_is_what_the_definition_says(kind: str, density: float) -> None:
    flat = drawn(kind)
    for name, (compressor, form) in forms(density, round(density * N)).items():
        wanted = form(flat.double().numpy()).nonzero()[0]
        if len(wanted):
            assert compressor.select(flat, "w", 0).tolist() == wanted.tolist(), name
        else:
            assert compressor.select(flat, "w", 0).tolist() == [int(flat.abs().argmax())], name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_narrow_gradients_are_fitted_as_wide_ones(dtype: torch.dtype) -> None:
    flat = drawn("laplace", 1, 5000).to(dtype)
    for name, (compressor, form) in forms(0.02, 100).items():
        found, wanted = compressor.select(flat, "w", 0), form(flat.double().numpy()).nonzero()[0]
        assert found.tolist() == wanted.tolist(), name


def test_moments_are_those_of_numpy_and_leave_the_gradient_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        flat = drawn("shifted").to(dtype)
        before, x = flat.clone(), flat.double().numpy()
        all_of, above = moments(values(flat)), moments(magnitudes(flat, 1.0), logarithms=True)
        assert all_of is not None and above is not None and torch.equal(flat, before)
        large = abs(x)[abs(x) > 1]
        assert (all_of.mean, all_of.variance) == (pytest.approx(x.mean()), pytest.approx(x.var()))
        assert (above.count, above.least, above.largest) == (len(large), large.min(), large.max())
        assert above.mean_log == pytest.approx(np.log(large).mean()) and math.isnan(all_of.mean_log)
    assert moments(magnitudes(flat, 100.0)) is None


@pytest.mark.parametrize("share", [0.5, 0.01, 1e-4, 1.0])
def test_tails_are_those_of_scipy(share: float) -> None:
    assert exponential(3.0, share) == pytest.approx(stats.expon.isf(share, scale=3.0))
    for variance in (0.1, 1.0, 8.9, 9.0, 9.1, 20.0):
        shape = (9 / variance - 1) / 2
        wanted = stats.genpareto.isf(share, -shape, scale=1.5 * (9 / variance + 1))
        assert generalised_pareto(3.0, variance, share) == pytest.approx(wanted, rel=1e-9)


def test_a_pareto_tail_becomes_an_exponential_one_without_a_jump() -> None:
    for offset in (0.0, 1e-15, -1e-15, 1e-12, -1e-12, 1e-9, -1e-9):
        found = generalised_pareto(2.0, 4.0 * (1 + offset), 0.01)
        assert found == pytest.approx(exponential(2.0, 0.01), rel=2e-8)
    assert generalised_pareto(2.0, 0.0, 0.01) == 2.0 == pytest.approx(generalised_pareto(2.0, 1e-9, 0.01))


def test_a_gamma_tail_is_near_that_of_scipy_far_out() -> None:
    for shape in (0.6, 0.8, 1.0, 1.3, 2.0):
        mean_log = special.digamma(shape)  # of scale 1, whose mean is the shape
        for share, rel in ((1e-3, 0.35), (1e-8, 0.2)):
            assert gamma(shape, mean_log, share) == pytest.approx(stats.gamma.isf(share, shape), rel=rel)
    assert gamma(1.0, special.digamma(1.0), 0.01) == pytest.approx(exponential(1.0, 0.01), rel=0.02)


def test_a_threshold_is_rounded_down_so_that_the_same_is_greater() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        eps = torch.finfo(dtype).eps
        x = torch.tensor([1.0, 1 + eps, 1 + 2 * eps], dtype=dtype)
        for part in (0.0, 0.4, 0.7, 1.0, 1.2):
            threshold = 1 + part * eps
            assert torch.equal(x > not_above(threshold, dtype), x.double() > threshold)
    assert not_above(1e-9, torch.float16) == 0.0 and not_above(1e9, torch.float16) == 65504.0


# --- properties ---


@pytest.mark.parametrize("name", FITTED)
def test_fits_that_go_wrong_send_something_and_no_zeros(name: str) -> None:
    compressor = build_compressor(name, 0.01)
    cases = {
        "one": torch.tensor([-3.0]),
        "few": torch.tensor([1.0, -2.0, 0.5]),
        "constant": torch.full((1000,), -0.1),
        "one spike": torch.zeros(1000).index_fill_(0, torch.tensor([7]), 5.0),
        "denormal": drawn("normal", n=3000) * 1e-42,
        "huge": drawn("normal", n=3000) * 1e38 / 5,
        "signs": drawn("normal", n=3000).sign(),
        "sparse": drawn("sparse", n=3000),
        "far off zero": drawn("normal", n=3000) * 0.01 - 5,
    }
    for kind, flat in cases.items():
        for stages in (None, 3) if isinstance(compressor, SIDCo) else (None,):
            one = SIDCo(0.01, fit=compressor.fit, stages=stages) if isinstance(compressor, SIDCo) else compressor
            values_sent, indices = one.compress(flat, "w", 0).parts()
            assert len(indices) and values_sent.all(), kind
            assert torch.equal(values_sent, flat[indices.long()])
        if kind == "one spike":
            assert indices.tolist() == [7]
        if kind == "constant":
            assert len(indices) == 1000, "of equal magnitudes all are sent"
    assert build_compressor(name, 0.01).compress(torch.zeros(50), "w", 0).nbytes == 0


# --- stages ---


def adapted(sent: list[float], density: float = 0.01) -> list[float]:
    """Numbers of stages after each call that sends so many parts of k, of a tensor of which k is 100."""
    compressor, n = SIDCo(density), round(100 / density)
    state, found = compressor.state(torch.Size([n]), torch.empty(0)), []
    for part in sent:
        # Equal magnitudes are sent all or none.
        grad = torch.zeros(n).index_fill_(0, torch.arange(round(100 * part)), 1.0)
        payload = compressor.compress_with(grad, "w", 0, state)
        assert len(payload.parts()[0]) == round(100 * part)
        found.append(float(state["stages"][0]))
    return found


def test_stages_follow_what_was_sent_five_calls_at_a_time() -> None:
    assert adapted([0.5] * 15) == [1] * 4 + [2] * 5 + [3] * 5 + [4]
    assert adapted([0.5] * 5 + [1.0] * 5 + [2.0] * 6) == [1] * 4 + [2] * 10 + [1] * 2
    assert adapted([0.1, 1.5, 1.5, 1.5, 0.4]) == [1] * 5, "the mean of five counts"
    assert adapted([0.0] * 9 + [0.5] * 5)[-2:] == [1, 2], "nothing is to be learnt of zeros"
    assert adapted([0.5] * 60)[-1] == 7 and adapted([0.5] * 20, density=0.4)[-1] == 2, "ceil(log2(1 / density))"
