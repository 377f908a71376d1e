"""Payloads that ranks make together: PowerSGD's and chunks by L1 norm against their definitions; and these, and
Ok-Topk's, in every step that does not go as it should."""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.chunked import L1Chunks
from resireduce.compressors.powersgd import PowerSGD
from resireduce.compressors.topk import TopK
from resireduce.contrib.oktopk import OkTopK
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import NonFiniteGradient
from tests.tensors import tensors
from tests.threads import LocalWorld
from tests.worlds import Given, Net, averages, distribute_given, same, seeded, train

SHAPES = {"a": (130, 90), "b": (64, 20, 9), "c": (5001, 2)}
"""A matrix, a kernel, and one that hardly shrinks. None is a whole number of chunks."""
ALL = {"powersgd": PowerSGD(min_compression_rate=0.4), "l1-chunks": L1Chunks(0.1), "ok-topk": OkTopK(0.1)}
Gradients = Mapping[str, Tensor]
distributed = partial(distribute_given, shapes=SHAPES)


def drawn(rank: int, step: int, kinds: str = "abc") -> Gradients:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return {name: torch.randn(SHAPES[name], generator=generator, dtype=torch.float64) for name in kinds}


def residuals(optimizer: DistributedOptimizer) -> dict[str, Tensor]:
    held = optimizer.residual_state_dict()
    return {name.removeprefix("full."): t.clone() for name, t in held.items() if name.startswith("full.")}


def remembered(optimizer: DistributedOptimizer) -> dict[str, Tensor]:
    return {name: one for name, one in optimizer.residual_state_dict().items() if name.startswith("compressor.")}


# --- the definitions ---


def power_iteration(rank: int) -> Callable[[str, Sequence[np.ndarray]], tuple[np.ndarray, list[np.ndarray]]]:
    """Vogels et al., algorithms 1 and 2, of all ranks at once: the average that comes back, and what each keeps."""
    start = {
        name: PowerSGD(rank).state(torch.Size(shape), torch.empty(0, dtype=torch.float64))
        for name, shape in SHAPES.items()
    }
    qs = {name: state["q"].numpy().copy() for name, state in start.items()}

    def step(name: str, compensated: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        matrices = [one.reshape(len(one), -1) for one in compensated]
        mean = sum(matrices) / len(matrices)
        p, _ = np.linalg.qr(mean @ qs[name].T)
        qs[name] = p.T @ mean
        kept = [(one - p @ (p.T @ one)).reshape(SHAPES[name]) for one in matrices]
        return (p @ qs[name]).reshape(SHAPES[name]), kept

    return step


def largest_chunks(
    density: float, size: int
) -> Callable[[str, Sequence[np.ndarray]], tuple[np.ndarray, list[np.ndarray]]]:
    """Sun et al.: chunks whose magnitudes, added up over all ranks, are the largest."""

    def step(name: str, compensated: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        of_element = np.arange(compensated[0].size) // size
        norms = sum(np.bincount(of_element, np.abs(one).ravel()) for one in compensated)
        chosen = np.argsort(-norms, kind="stable")[: max(1, int(density * len(norms)))]
        sent = np.isin(of_element, chosen).reshape(SHAPES[name])
        average = sum(np.where(sent, one, 0) for one in compensated) / len(compensated)
        return average, [np.where(sent, 0, one) for one in compensated]

    return step


@pytest.mark.parametrize(
    ("compressor", "definition"),
    [
        (PowerSGD(1, min_compression_rate=0.5), power_iteration(1)),
        (PowerSGD(4, min_compression_rate=0.4), power_iteration(4)),
        (L1Chunks(0.1), largest_chunks(0.1, 256)),
        (L1Chunks(0.3, size=100), largest_chunks(0.3, 100)),
    ],
    ids=["powersgd-1", "powersgd-4", "chunks-256", "chunks-100"],
)
def test_three_ranks_do_as_it_is_defined(compressor: Compressor, definition: Callable) -> None:  # type: ignore[type-arg]
    world, steps = 3, 4

    def rank(communicator: Communicator) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        model, optimizer = distributed(communicator, compressor=compressor)
        return [
            (averages(model, optimizer, drawn(communicator.rank, step)), residuals(optimizer)) for step in range(steps)
        ]

    found = LocalWorld(world).run(rank)
    kept = {name: [np.zeros(shape)] * world for name, shape in SHAPES.items()}
    for step in range(steps):
        for name in SHAPES:
            compensated = [drawn(i, step)[name].numpy() + kept[name][i] for i in range(world)]
            average, kept[name] = definition(name, compensated)
            for i in range(world):
                theirs, left = found[i][step]
                np.testing.assert_allclose(theirs[name], average, atol=1e-9, err_msg=f"{name}, step {step}, rank {i}")
                np.testing.assert_allclose(left[name], kept[name][i], atol=1e-9)


@given(grad=tensors((torch.float64,)), rank=st.integers(1, 5))
def test_what_powersgd_sends_is_an_orthogonal_projection(grad: Tensor, rank: int) -> None:
    payload = PowerSGD(rank).compress(grad, "w", 0)
    sent, error = PowerSGD(rank).decompress(payload), PowerSGD(rank).error_(grad.clone(), payload)
    size = float(grad.norm())
    assert abs(float((sent * error).sum())) <= 1e-9 * size**2
    assert float(sent.norm()) <= size * (1 + 1e-9)
    if rank >= min(grad.shape):
        assert float(error.norm()) <= 1e-6 * size, "nothing is left of what has no more dimensions"


# --- what PowerSGD remembers ---


def test_gradients_of_zeros_and_of_low_rank_leave_no_vector_dead() -> None:
    model, optimizer = distributed(LocalCommunicator(), compressor=PowerSGD(2), scheme="none")
    zeros = {name: torch.zeros_like(grad) for name, grad in drawn(0, 0).items()}
    assert not any(average.any() for average in averages(model, optimizer, zeros).values())
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(130, 1, generator=generator, dtype=torch.float64) @ torch.ones(1, 90, dtype=torch.float64)
    torch.testing.assert_close(averages(model, optimizer, {"a": one})["a"], one)
    for step in range(3):
        found = averages(model, optimizer, {"a": drawn(0, step)["a"]})["a"]
        assert torch.linalg.matrix_rank(found) == 2, "both vectors send again"


def test_what_would_not_shrink_is_sent_as_it_is_and_has_no_residual() -> None:
    for compressor, shrinks in ((PowerSGD(1), "ab"), (PowerSGD(1, min_compression_rate=1), "abc"), (PowerSGD(60), "")):
        model, optimizer = distributed(LocalCommunicator(), compressor=compressor)
        found, grads = averages(model, optimizer, drawn(0, 0)), drawn(0, 0)
        assert set(residuals(optimizer)) == set(shrinks), compressor
        assert {name for name in SHAPES if not torch.equal(found[name], grads[name])} == set(shrinks)


# --- bytes ---


def test_bytes_that_are_sent_are_those_of_all_rounds() -> None:
    grad = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    assert PowerSGD(3).compress(grad, "w", 0).nbytes == 4 * 3 * (300 + 40)
    assert PowerSGD(3).compress(grad.bfloat16(), "w", 0).nbytes == 4 * 3 * (300 + 40), "summed in float32"
    chunks = -(-12_000 // 256)
    assert L1Chunks(0.1).compress(grad, "w", 0).nbytes == 4 * (256 * (chunks // 10) + chunks)
    sent = L1Chunks(0.1).sent_indices(L1Chunks(0.1).compress(grad, "w", 0))
    assert len(sent.unique()) == 256 * (chunks // 10)
    for compressor in ALL.values():
        planned = compressor.compress(torch.empty(300, 40, device="meta"), "w", 0)
        assert planned.nbytes == compressor.compress(grad, "w", 0).nbytes


# --- steps that do not go as they should ---


@pytest.mark.parametrize("compressor", ALL.values(), ids=ALL)
def test_a_rank_without_a_gradient_keeps_its_residual_and_learns_what_the_others_have_sent(
    compressor: Compressor,
) -> None:
    """And nothing is lost: what all hold and have found is what came back, as often as there are ranks."""

    def rank(communicator: Communicator) -> list[Gradients]:
        model, optimizer = distributed(communicator, compressor=compressor)
        averages(model, optimizer, drawn(communicator.rank, 0))
        before, mine = residuals(optimizer), drawn(communicator.rank, 1, "ab" if communicator.rank else "a")
        return [before, mine, averages(model, optimizer, mine), residuals(optimizer), remembered(optimizer)]

    ranks = LocalWorld(3).run(rank)
    (one, _, found, left, state), *others = ranks
    for _, _, other, _, learnt in others:
        assert all(torch.equal(found[name], other[name]) for name in SHAPES)
        assert all(torch.equal(state[name], learnt[name]) for name in state if not name.endswith(".mine"))
    assert torch.equal(left["b"], one["b"]) and found["b"].any(), "the others alone had a gradient of it"
    assert torch.equal(left["c"], one["c"]) and not found["c"].any(), "none had"
    for name in SHAPES:
        had = sum(before[name] + mine[name] if name in mine else before[name] for before, mine, *_ in ranks)
        torch.testing.assert_close(3 * found[name] + sum(after[name] for _, _, _, after, _ in ranks), had)


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("compressor", ALL.values(), ids=ALL)
def test_gradients_may_come_in_another_order_on_each_rank_and_none_waits_for_another_in_backward(
    compressor: Compressor, gradients: str
) -> None:
    first_is_done = threading.Event()

    def rank(communicator: Communicator, order: str) -> Given:
        model, optimizer = distributed(communicator, compressor=compressor, gradients=gradients)
        for step in range(3):
            optimizer.zero_grad()
            mine = drawn(communicator.rank, step)
            if communicator.rank == 1 and step == 2:
                assert first_is_done.wait(300), "rank 0 must come to the end of its backward pass alone"
            model({name: mine[name] for name in order}).backward()
            if communicator.rank == 0 and step == 2:
                first_is_done.set()
            optimizer.step()
        return model

    usual = LocalWorld(2).run(lambda communicator: rank(communicator, "abc"))
    first_is_done.clear()
    other = LocalWorld(2).run(lambda communicator: rank(communicator, "bca" if communicator.rank else "acb"))
    assert same(usual[0], other[0]) and same(other[0], other[1])


@pytest.mark.parametrize("compressor", ALL.values(), ids=ALL)
def test_a_gradient_that_is_not_finite_is_an_error_on_all_ranks_and_leaves_its_residual(compressor: Compressor) -> None:
    def rank(communicator: Communicator) -> None:
        model, optimizer = distributed(communicator, compressor=compressor)
        averages(model, optimizer, drawn(communicator.rank, 0))
        held = optimizer.residual_state_dict()  # the tensors themselves
        before = copy.deepcopy(held)
        mine = dict(drawn(communicator.rank, 1))
        if communicator.rank:
            mine["b"] = mine["b"] * torch.nan
        with pytest.raises(NonFiniteGradient):
            averages(model, optimizer, mine)
        assert all(tensor.isfinite().all() for name, tensor in held.items() if name.startswith("full."))
        assert torch.equal(held["full.b"], before["full.b"]) == bool(communicator.rank)
        assert all(torch.equal(held[name], before[name]) for name in held if name.startswith("compressor."))

    LocalWorld(2).run(rank)


# --- chunks ---


class Joined(PowerSGD):
    """Says of sums that they can be joined."""

    merges = True


def test_rounds_that_are_sums_are_not_joined() -> None:
    with pytest.raises(TypeError, match="merges: rounds of several tensors must ask for the same exchanges"):
        train(LocalCommunicator(), seeded(Net), compressor=Joined(), merge="one", scheme="baseline")


def test_a_compressor_with_rounds_begins_with_agreeing() -> None:
    with pytest.raises(TypeError, match="Alone: a compressor whose ranks agree in rounds is to be an Agreeing"):
        type("Alone", (TopK,), {"agree": PowerSGD.agree})
