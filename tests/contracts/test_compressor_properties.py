"""Properties of compressors, for gradients of every kind: nothing in them, ties, one element, huge and tiny values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.compressors.adtopk import ADTopK
from resireduce.compressors.base import NoCompression, State
from resireduce.compressors.chunked import L1Chunks
from resireduce.compressors.packed import SparseCompressor
from resireduce.compressors.quantized import QSGD, Fp16
from resireduce.compressors.thresholds import Threshold
from resireduce.compressors.topk import RandomK, TopK
from resireduce.contrib.oktopk import OkTopK
from resireduce.core.messages import Message, Payload, Summed
from resireduce.kernels.ops import by_keys, largest_magnitudes
from resireduce.pieces import share
from resireduce.residuals.base import select
from resireduce.scheme import COMPRESSORS, build_compressor
from tests.tensors import densities, tensors
from tests.threads import LocalWorld
from tests.worlds import distributed, residuals

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BUILT = {name: build_compressor(name, 0.1) for name in COMPRESSORS}
SPARSIFIERS = [
    name
    for name, one in BUILT.items()
    if isinstance(one, SparseCompressor | ADTopK | RandomK | L1Chunks | OkTopK) and not getattr(one, "half", False)
]
"""Those that send values of the gradient as they are."""
INDEXED = [
    name
    for name, one in BUILT.items()
    if isinstance(one, OkTopK) or (isinstance(one, SparseCompressor) and not one.coded)
]


def squared(x: Tensor) -> Tensor:
    return x.double().square().sum()


@pytest.mark.parametrize("name", COMPRESSORS)
@given(grad=tensors(DTYPES), density=densities)
def test_sent_plus_kept_is_the_gradient(name: str, grad: Tensor, density: float) -> None:
    compressor, before = build_compressor(name, density), grad.clone()
    payload = compressor.compress(grad, "w", 0)
    sent = compressor.decompress(payload).clone()
    error = compressor.error_(grad.clone(), payload)
    assert torch.equal(grad, before), "compress must leave its input alone"
    assert sent.dtype == error.dtype == grad.dtype and sent.shape == error.shape == grad.shape
    rounding = torch.finfo(grad.dtype).eps * float(max(sent.abs().max(), before.abs().max()))
    rounding = 0.0 if name in SPARSIFIERS or compressor.lossless else rounding
    torch.testing.assert_close(sent + error, before, rtol=0, atol=rounding)
    assert not (compressor.lossless and error.any())


@pytest.mark.parametrize("name", SPARSIFIERS)
@given(grad=tensors(DTYPES), density=densities)
def test_what_a_sparsifier_sends_and_keeps_do_not_overlap(name: str, grad: Tensor, density: float) -> None:
    compressor = build_compressor(name, density)
    payload = compressor.compress(grad, "w", 0)
    sent, error = compressor.decompress(payload), compressor.error_(grad.clone(), payload)
    assert not torch.logical_and(sent, error).any()
    torch.testing.assert_close(
        squared(error), squared(grad) - squared(sent), rtol=1e-12, atol=1e-12 * float(squared(grad))
    )


@pytest.mark.parametrize("name", INDEXED)
@given(grad=tensors(DTYPES), density=densities)
def test_indices_are_unique_and_in_range_and_values_are_those_of_the_gradient(
    name: str, grad: Tensor, density: float
) -> None:
    values, indices = build_compressor(name, density).compress(grad, "w", 0).parts()
    assert indices.tolist() == sorted(set(indices.tolist()))
    assert all(0 <= index < grad.numel() for index in indices.tolist())
    chosen = grad.view(-1)[indices.long()]
    largest = min(torch.finfo(dtype).max for dtype in (values.dtype, grad.dtype))
    assert torch.equal(values, chosen.clamp(-largest, largest).to(values.dtype)), "rounded, if that is narrower"


@pytest.mark.parametrize("name", INDEXED)
@given(grads=st.integers(1, 5).flatmap(lambda n: st.lists(tensors((torch.float64,), 1, 40), min_size=n, max_size=n)))
def test_a_sum_of_ranks_is_one_scatter_of_all_that_they_sent(name: str, grads: list[Tensor]) -> None:
    compressor, shortest = build_compressor(name, 0.3), min(grad.numel() for grad in grads)
    payloads = [compressor.compress(grad[:, :shortest].contiguous(), f"w/{i}", 0) for i, grad in enumerate(grads)]
    summed = torch.zeros(1, shortest, dtype=torch.float64)
    for payload in payloads:
        compressor.add_(summed, payloads[0].received(payload.buffer))
    values, indices = (torch.cat(parts) for parts in zip(*(payload.parts() for payload in payloads), strict=True))
    scattered = torch.zeros(shortest, dtype=torch.float64).index_add_(0, indices, values.double())
    torch.testing.assert_close(summed.view(-1), scattered, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_error_feedback_keeps_just_what_it_did_not_send(name: str) -> None:
    """By SGD at rate 1 from zeros, a parameter is what was sent."""
    model = nn.Linear(100, 110, bias=False, dtype=torch.float64)
    optimizer = distributed(model, lr=1.0, compressor=name, density=0.1)
    source, after = torch.Generator().manual_seed(0), torch.zeros(110, 100, dtype=torch.float64)
    for _ in range(3):
        grad, before = torch.randn(110, 100, generator=source, dtype=torch.float64), after
        model.weight.data.zero_()
        optimizer.zero_grad()
        (model.weight * grad).sum().backward()
        optimizer.step()
        sent, after = -model.weight.detach(), residuals(optimizer)["full.weight"].clone()
        assert torch.equal(sent + after, before + grad)
        assert not after[sent != 0].any() and sent.any()


RAGGED = ("dgc", "dgc-momentum", "dgc-simple", "threshold", "gaussian", "redsync-trim", "sidco-gamma")
"""One compressor of each kind that fits a threshold."""


@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize("half", [False, True])
@given(grad=tensors(DTYPES, 40, 60), density=densities, scale=st.sampled_from([1.0, 1e-7]))
def test_no_zero_is_ever_sent(name: str, half: bool, grad: Tensor, density: float, scale: float) -> None:
    kind = type(build_compressor(name, density))
    compressor = kind(half=half, threshold=0.0) if kind is Threshold else kind(density, half=half)
    values = compressor.compress(grad * scale, "w", 0).parts()[0]
    assert values.all(), f"{int((values == 0).sum())} of {len(values)} are zeros"


@pytest.mark.parametrize("compressor", RAGGED)
def test_ranks_that_saw_other_words_train_alike(compressor: str) -> None:
    """In the second step no rank has a gradient but of zeros, and all payloads are empty."""

    def rank(communicator: Communicator) -> tuple[Tensor, Tensor]:
        words = nn.Embedding(30_528, 16)  # BERT's vocabulary
        nn.init.ones_(words.weight)
        optimizer = distributed(words, lr=1.0, backend=communicator, compressor=compressor, density=0.01)
        for step in range(2):
            optimizer.zero_grad()
            (words(torch.tensor([5 * communicator.rank])) * (1 - step)).sum().backward()
            optimizer.step()
        return words.weight.detach(), optimizer.residual_state_dict()["full.weight"]

    (first, kept), (second, _) = LocalWorld(2).run(rank)
    assert torch.equal(first, second) and not kept.any()
    moved = (first - 1).sum(1).nonzero().view(-1).tolist()
    assert moved == [0, 5] and (first[moved] <= 0.5).all()


@dataclass(frozen=True)
class Counting(TopK):
    """Remembers how often it was called."""

    def state(self, shape: torch.Size, like: Tensor) -> State:
        return {"calls": torch.zeros((), dtype=torch.int64, device=like.device)}

    def compress_with(self, grad: Tensor, name: str, step: int, state: State) -> Payload:
        state["calls"].add_(1)
        return self.compress(grad, name, step)


def test_the_state_of_a_compressor_stays_where_a_tensor_has_no_gradient() -> None:
    """On all ranks of one that none has used, and on the rank that has not used what another one sends."""

    def rank(communicator: Communicator) -> list[str]:
        model = nn.ParameterDict({name: torch.ones(100, 100) for name in ("both", "first", "none")})
        optimizer = distributed(model, backend=communicator, compressor=Counting(0.05))
        sum(model[name].square().sum() for name in ("both", "first")[: 2 - communicator.rank]).backward()
        optimizer.step()
        return [name for name, held in optimizer.residual_state_dict().items() if name.endswith("calls") and held == 1]

    both, first = "compressor.both.calls", "compressor.first.calls"
    assert LocalWorld(2).run(rank) == [[both, first], [both]]


@dataclass(frozen=True)
class Halved(NoCompression):
    """Sends the gradient in bfloat16."""

    lossless: ClassVar[bool] = False

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        return Payload.pack(grad.view(-1).bfloat16(), like=grad)

    def message(self, names: Sequence[str], payloads: Sequence[Payload]) -> Message:
        return Summed.of(names, self, payloads)


def test_a_lossy_form_of_no_compression_keeps_what_it_does_not_send() -> None:
    model = nn.ParameterDict({"weight": torch.ones(100, 100)})
    optimizer = distributed(model, compressor=Halved())
    (model["weight"] * 1.001).sum().backward()
    optimizer.step()
    (held,) = residuals(optimizer).values()
    assert torch.equal(held, torch.full((100, 100), 1.001) - 1)


@given(grad=tensors(), density=densities)
def test_topk_sends_the_largest(grad: Tensor, density: float) -> None:
    compressor, k = build_compressor("topk", density), share(density, grad.numel())
    payload = compressor.compress(grad, "w", 0)
    sent, indices = compressor.decompress(payload), payload.parts()[1].long()
    unsent = torch.ones(grad.numel(), dtype=torch.bool).index_fill_(0, indices, False)
    magnitudes = grad.view(-1).abs()
    assert len(indices) == k and (k == 1 or density * grad.numel() >= 1)
    assert not unsent.any() or magnitudes[indices].min() >= magnitudes[unsent].max()
    assert squared(grad - sent) <= (1 - k / grad.numel()) * squared(grad) * (1 + 1e-6)
    assert torch.equal(compressor.decompress(compressor.compress(sent, "w", 1)), sent), "it is idempotent"


@given(grad=tensors(rows=1, columns=300), density=densities, piece=st.integers(1, 60))
def test_topk_is_the_same_in_pieces_of_any_size(grad: Tensor, density: float, piece: int) -> None:
    flat, k = grad.view(-1), share(density, grad.numel())
    expected = flat.abs().sort(stable=True).indices[-k:].sort().values
    assert torch.equal(largest_magnitudes(flat, k), expected)
    assert torch.equal(by_keys(flat, k, piece), expected)


@given(norms=tensors(rows=1, columns=300), density=densities, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_largest_norms_are_those_of_a_stable_sort(norms: Tensor, density: float, dtype: torch.dtype) -> None:
    flat, k = norms.view(-1).abs().to(dtype), share(density, norms.numel())
    (found,) = select([flat], [k], ["x"], "largest", 0)
    assert found.tolist() == flat.sort(stable=True).indices[-k:].sort().values.tolist()


@given(grad=tensors(DTYPES), place=st.integers(0, 24 * 24), factor=st.sampled_from([0.5, 1.0, 1.0, 2.0, 1e6]))
def test_a_threshold_sends_what_is_greater_and_nothing_if_nothing_is(grad: Tensor, place: int, factor: float) -> None:
    magnitudes = grad.double().view(-1).abs()
    threshold = factor * float(magnitudes[place % grad.numel()])  # often just that of an element, which stays
    payload = Threshold(threshold).compress(grad, "w", 0)
    assert torch.equal(Threshold(threshold).decompress(payload), torch.where(grad.abs() > threshold, grad, 0))
    assert len(payload.parts()[0]) == (magnitudes > threshold).sum()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_threshold_is_not_rounded_to_the_dtype_of_the_gradient(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    grad = torch.tensor([1 - eps, 1.0, 1 + eps, 1 + 2 * eps], dtype=dtype)
    for threshold in (1 - 0.9 * eps, 1 - 0.1 * eps, 1 + 0.1 * eps, 1 + 0.9 * eps, 1 + 1.1 * eps, 1 + 1.9 * eps):
        sent = Threshold(threshold).decompress(Threshold(threshold).compress(grad, "w", 0))
        assert torch.equal(sent, torch.where(grad.double() > threshold, grad, 0)), threshold
    assert len(Threshold(1e-9).compress(torch.full((5,), 6e-8).to(dtype), "w", 0).parts()[0]) == 5


QUANTISERS = [QSGD(), QSGD(norm=torch.inf, bucket=None), QSGD(bucket=None), QSGD(norm=torch.inf, bucket=7)]


@pytest.mark.parametrize("compressor", QUANTISERS)
@given(grad=tensors((torch.float32, torch.float64)), step=st.integers(0, 9))
def test_qsgd_is_within_a_level_of_each_bucket(compressor: QSGD, grad: Tensor, step: int) -> None:
    back = compressor.decompress(compressor.compress(grad, "w", step))
    size = compressor.bucket or grad.numel()
    for found, wanted in zip(back.view(-1).split(size), grad.view(-1).split(size), strict=True):
        level = torch.linalg.vector_norm(wanted, compressor.norm) / 127
        assert ((found - wanted).abs() <= level * (1 + 1e-5)).all()
        assert not found[wanted == 0].any() and (found * wanted >= 0).all(), "zeros stay, and no sign changes"


@given(grad=tensors((torch.float32, torch.float64)), scale=st.sampled_from([1.0, 1e-3, 1e30]))
def test_fp16_errs_by_half_a_unit_in_the_last_place(grad: Tensor, scale: float) -> None:
    grad = grad * scale
    back = Fp16().decompress(Fp16().compress(grad, "w", 0))
    limited = grad.clamp(-Fp16().largest, Fp16().largest)
    smallest = torch.finfo(torch.float16).tiny
    allowed = torch.where(limited.abs() >= smallest, limited.abs() * 2**-11, smallest * 2**-11)
    assert ((back - limited).abs() <= allowed).all() and back.dtype == grad.dtype
