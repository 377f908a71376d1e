"""What single compressors send; test_compressor_properties has what holds for every gradient."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.dgc import DGC
from resireduce.compressors.quantized import QSGD, Block4, Block8, Fp16
from resireduce.compressors.thresholds import Threshold
from resireduce.compressors.topk import RandomK, TopK
from resireduce.core.messages import Payload
from resireduce.errors import ConfigError
from resireduce.kernels.ops import by_keys, largest_magnitudes
from resireduce.pieces import share
from resireduce.scheme import COMPRESSORS, build_compressor
from tests.tensors import gradient
from tests.threads import LocalWorld


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_payload_survives_the_wire(name: str) -> None:
    compressor, grad = build_compressor(name, 0.01), gradient(101, 100)
    payload = compressor.compress(grad, "w", 0)
    gathered = torch.stack([payload.buffer, payload.buffer])
    received = payload.received(gathered[1])
    assert torch.equal(compressor.decompress(received), compressor.decompress(payload))
    scaled = compressor.add_(torch.zeros_like(grad), received, scale=0.5)
    assert torch.equal(2 * scaled, compressor.decompress(payload))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_random_choices_repeat_themselves_and_leave_the_global_generator_alone(name: str) -> None:
    compressor, grad, before = build_compressor(name, 0.1), gradient(101, 100), torch.get_rng_state()
    first, again = (compressor.compress(grad.clone(), "w", 3).buffer for _ in range(2))
    assert torch.equal(first, again) and torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", COMPRESSORS)
def test_zeros_stay_zeros(name: str) -> None:
    compressor = build_compressor(name, 0.1)
    payload = compressor.compress(torch.zeros(50, 40), "w", 0)
    assert torch.equal(compressor.decompress(payload), torch.zeros(50, 40))
    assert torch.equal(compressor.error_(torch.zeros(50, 40), payload), torch.zeros(50, 40))


def test_a_threshold_that_cannot_be_used_is_refused_and_one_that_nothing_reaches_sends_nothing() -> None:
    assert Threshold(5.0).compress(gradient(3, 4) / 10, "w", 0).nbytes == 0
    for bad in (-1.0, float("nan"), True):
        with pytest.raises(ConfigError, match=r"threshold: .* is not allowed; give a number, 0 or more"):
            Threshold(bad)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(700, 300), (100, 100), (1, 1)])
def test_dgc_sends_about_the_largest_and_never_more_than_k(shape: tuple[int, int], density: float) -> None:
    grad = gradient(*shape)
    k = share(density, grad.numel())
    values, indices = DGC(density).compress(grad, "w", 0).parts()
    assert 0.7 * k <= len(values) <= k and len(indices.unique()) == len(indices)
    assert values.abs().min() >= 0.6 * grad.view(-1).abs().topk(k).values.min()
    alike = DGC(density).compress(torch.ones(shape), "w", 0)
    assert len(alike.parts()[0]) == k, "of equal magnitudes just k are sent"


def test_randomk_draws_alike_from_name_and_step_and_sends_values_alone() -> None:
    compressor, grad = RandomK(0.25), gradient(60, 50)
    sent = {key: compressor.decompress(compressor.compress(grad, *key)) for key in (("w", 0), ("w", 1), ("v", 0))}
    assert all((value != 0).sum() == 750 for value in sent.values())
    assert not torch.equal(sent["w", 0], sent["w", 1]) and not torch.equal(sent["w", 0], sent["v", 0])
    assert compressor.compress(grad, "w", 0).nbytes == 750 * 4
    mean = sum(compressor.decompress(compressor.compress(torch.ones(8), "w", step)) for step in range(2000)) / 2000
    torch.testing.assert_close(mean, torch.full((8,), 0.25), rtol=0, atol=0.05)


@pytest.mark.parametrize("compressor", [QSGD(), QSGD(math.inf, None), QSGD(bucket=None)])
def test_qsgd_of_values_whose_squares_overflow(compressor: QSGD) -> None:
    grad = gradient(30, 17) * 1e30
    payload = compressor.compress(grad, "w", 0)
    sent = compressor.decompress(payload)
    assert sent.isfinite().all() and (sent - grad).abs().max() <= grad.abs().max() / 127 * 1.001
    assert torch.allclose(sent + compressor.error_(grad.clone(), payload), grad)


def test_fp16_feeds_back_what_it_cannot_send() -> None:
    grad = torch.tensor([1e6, -1e6, 1.0, 1e-9]).view(2, 2)
    payload = Fp16().compress(grad, "w", 0)
    assert payload.buffer.tolist() == [2.0**15, -(2.0**15), 1.0, 0.0]
    assert torch.equal(Fp16().error_(grad.clone(), payload), torch.tensor([[1e6 - 2**15, 2**15 - 1e6], [0.0, 1e-9]]))


def test_fp16_loses_nothing_small_however_many_ranks_there_are() -> None:
    def moved(communicator: Communicator) -> float:
        model = nn.Linear(120, 120, bias=False)
        nn.init.zeros_(model.weight)
        wrapped = torch.optim.SGD(model.parameters(), 1.0)
        optimizer = resireduce.distribute(model, wrapped, "baseline", "fp16", backend=communicator)
        for _ in range(6):
            optimizer.zero_grad()
            (model.weight * 1e-6).sum().backward()
            optimizer.step()
        return model.weight[0, 0].item()

    assert LocalWorld(64).run(moved) == pytest.approx([-6e-6] * 64, rel=0.01)


def test_fp16_cannot_overflow_when_ranks_are_summed() -> None:
    for world_size in range(1, 1025):
        for dtype in (torch.float32, torch.bfloat16):
            payload = Fp16().for_world(world_size).compress(torch.full((1, 1), 1e5, dtype=dtype), "w", 0)
            assert (payload.buffer * world_size).isfinite().all(), (world_size, dtype)
    lossy, grad = Fp16().for_world(4), torch.full((2, 2), 1e5)
    payload = lossy.compress(grad, "w", 0)
    assert torch.equal(lossy.decompress(payload) + lossy.error_(grad.clone(), payload), grad)


@pytest.mark.parametrize(
    ("numel", "density", "k"), [(1, 0.01, 1), (99, 0.01, 1), (100, 0.29, 29), (199, 0.01, 1), (200, 0.01, 2), (7, 1, 7)]
)
def test_number_of_elements_sent(numel: int, density: float, k: int) -> None:
    assert share(density, numel) == k


def drawn(n: int) -> dict[str, torch.Tensor]:
    """Values of all kinds, ties and what misleads a sample of every 17th among them, in float64."""
    normal = gradient(n).double()
    held_back, outside = normal.clone(), torch.zeros(n, dtype=torch.float64)
    held_back[::17], outside[::17] = 0, normal[::17]
    return {
        "normal": normal,
        "rising": normal.sort().values,
        "falling": normal.abs().sort(descending=True).values,
        "zeros": torch.zeros(n),
        "constant": torch.full((n,), -3.0),
        "signs": normal.sign(),
        "clipped": normal.clamp(-1, 1),
        "copied": normal.repeat_interleave(49)[:n],
        "denormal": normal * 1e-42,
        "infinite": normal.masked_fill(normal > 1, torch.inf),
        "unsampled": held_back,
        "sampled": outside,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 17, 2048, 5000, 70_001])
def test_a_selection_is_that_of_a_stable_sort(n: int, dtype: torch.dtype) -> None:
    for kind, values in drawn(n).items():
        flat = values.to(dtype)
        ordered = flat.abs().sort(stable=True).indices
        for k in {1, max(1, n // 1000), max(1, n // 100), max(1, n // 3), n}:
            expected = ordered[-k:].sort().values
            assert torch.equal(largest_magnitudes(flat, k), expected), (kind, k)
            for piece in (None, 1000):
                assert torch.equal(by_keys(flat, k, piece), expected), (kind, k, piece)


@given(st.lists(st.sampled_from(["float16", "float32", "int32", "int64", "uint8"]), min_size=1, max_size=4))
def test_parts_of_any_dtypes_come_back_as_packed(names: list[str]) -> None:
    parts = [torch.arange(i + 3).to(getattr(torch, name)) for i, name in enumerate(names)]
    back = Payload.pack(*parts, like=torch.zeros(1)).parts()
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(parts, back, strict=True))


@pytest.mark.parametrize("made", [TopK(0.01), Fp16(), Block8(), Block4()])
def test_what_a_subclass_sends_is_what_it_compresses_and_what_comes_is_what_it_adds(made: Compressor) -> None:
    def half(self: Compressor, grad: torch.Tensor, name: str, step: int) -> Payload:
        return type(made).compress(self, grad / 2, name, step)

    def twice(self: Compressor, dense: torch.Tensor, payload: Payload, scale: float = 1.0) -> torch.Tensor:
        return type(made).add_(self, dense, payload, 2 * scale)

    def moved(compressor: Compressor) -> torch.Tensor:
        model = nn.Linear(120, 120, bias=False)
        nn.init.zeros_(model.weight)
        wrapped = torch.optim.SGD(model.parameters(), 1.0)
        optimizer = resireduce.distribute(model, wrapped, "baseline", compressor, backend="local")
        (model.weight * gradient(120, 120)).sum().backward()
        optimizer.step()
        return model.weight.detach()

    changed = type("Changed", (type(made),), {"compress": half})
    mixed = type("Mixed", (type("Half", (), {"compress": half}), type(made)), {})
    for kind in (changed, mixed, type("Again", (mixed,), {})):
        assert torch.equal(moved(kind.from_density(0.01)), moved(made) / 2)  # type: ignore[attr-defined]
    assert torch.equal(moved(type("Added", (type(made),), {"add_": twice}).from_density(0.01)), moved(made) * 2)
