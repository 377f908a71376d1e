"""Ok-Topk: what ranks exchange, keep and remember, against its definition; what it sends, and when it is refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import resireduce
from resireduce.comm.base import Communicator, Handle
from resireduce.comm.local import LocalCommunicator
from resireduce.contrib.oktopk import OkTopK
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError
from tests.threads import LocalWorld, ThreadCommunicator
from tests.worlds import Given, averages, distribute_given

SIZE = 12_000
OFTEN = {"local_every": 5, "global_every": 7, "regions_every": 4}
"""Periods so short that a few steps have what is found, what is used again, and both in one step."""
SCALES = [1, 1, 1.05, 1.3, 0.9, 0.8, 1, 4, 1, 1, 1e-3, 1e-3, 1, 1, 1, 1.2]
"""By what the gradients of a step are multiplied: thresholds fit, are raised, pass too many, and none reaches them."""


def drawn(rank: int, step: int) -> Tensor:
    """A gradient of which the ranks have a part in common; large elements are where a few are."""
    own, common = (torch.Generator().manual_seed(seed) for seed in (1000 * rank + step, step))
    shared = torch.randn(SIZE, 1, generator=common, dtype=torch.float64)
    mine = torch.randn(SIZE, 1, generator=own, dtype=torch.float64)
    uneven = torch.linspace(0.2, 3, SIZE, dtype=torch.float64).unsqueeze(1)
    return SCALES[step % len(SCALES)] * uneven * (shared + mine)


distributed = partial(distribute_given, shapes={"weight": (SIZE, 1)}, compressor=OkTopK(0.02, **OFTEN))


def average(model: Given, optimizer: DistributedOptimizer, gradient: Tensor | None) -> Tensor:
    """What a step brings back of this rank's gradient; None: it has none."""
    return averages(model, optimizer, {} if gradient is None else {"weight": gradient})["weight"]


def held(optimizer: DistributedOptimizer, name: str) -> Tensor:
    found = optimizer.residual_state_dict()
    return found["full.weight" if name == "residual" else f"compressor.weight.{name}"].clone()


# --- the definition ---


@dataclass
class Definition:
    """Li and Hoefler, section 3, of all ranks at once, with dense arrays, in float64."""

    ranks: int
    k: int
    starts: list[int] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    common: float = 0.0
    seen: list[str] = field(default_factory=list)
    """What has come to pass: a test that never meets a case proves nothing of it."""

    def __post_init__(self) -> None:
        self.starts = [SIZE * rank // self.ranks for rank in range(self.ranks)]
        self.own = [0.0] * self.ranks

    def select(self, rank: int, step: int, gradient: np.ndarray) -> np.ndarray:
        sizes, k = np.abs(gradient), self.k
        if step % 5 and self.own[rank]:
            for raised in range(6):
                count = int((sizes >= self.own[rank]).sum())
                if count <= 4 * k / 3:
                    chosen = np.flatnonzero(sizes >= self.own[rank])
                    self.own[rank] *= 1 / 1.012 if count < 2 * k / 3 else 1.012 if count > 5 * k / 4 else 1
                    self.seen += (
                        ["few"] * int(count < 2 * k / 3) + ["many"] * int(count > 5 * k / 4) + ["raised"] * raised
                    )
                    return chosen
                self.own[rank] *= 1.03
            self.seen.append("too many")
        self.own[rank] = np.sort(sizes)[-k]
        return np.flatnonzero(sizes >= self.own[rank])

    def step(self, step: int, gradients: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        chosen = [self.select(rank, step, gradient) for rank, gradient in enumerate(gradients)]
        if step % 4 == 0 and self.ranks > 1:
            cuts = [[one[len(one) * place // self.ranks] for place in range(1, self.ranks)] for one in chosen]
            self.starts = [0, *(sum(column) // self.ranks for column in zip(*cuts, strict=True))]
        sums = np.zeros(SIZE)
        for indices, gradient in zip(chosen, gradients, strict=True):
            sums[indices] += gradient[indices]
        sizes = np.abs(sums)
        if step % 7 == 0 or not self.common:
            self.seen += ["none", "again"] if step % 7 else []
            self.common = np.sort(sizes)[-self.k]
            back = sizes >= self.common
        else:
            back = sizes >= self.common
            count = int(back.sum())
            self.common *= 1 / 1.008 if count < 2 * self.k / 3 else 1.008 if count > 4 * self.k / 3 else 1
            self.seen += ["fewer"] * int(count < 2 * self.k / 3) + ["more"] * int(count > 4 * self.k / 3)
            if not 0 < count <= 2 * self.k:
                self.common = 0.0
        kept = [
            np.where(back & np.isin(np.arange(SIZE), indices), 0, gradient)
            for indices, gradient in zip(chosen, gradients, strict=True)
        ]
        return np.where(back, sums, 0) / self.ranks, kept


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_do_as_it_is_defined(ranks: int) -> None:
    steps = len(SCALES)

    def rank(communicator: Communicator) -> list[dict[str, Tensor]]:
        model, optimizer = distributed(communicator)
        return [
            {"average": average(model, optimizer, drawn(communicator.rank, step))}
            | {name: held(optimizer, name) for name in ("residual", "mine", "common", "starts")}
            for step in range(steps)
        ]

    found = LocalWorld(ranks).run(rank)
    definition, left = Definition(ranks, k=240), [np.zeros(SIZE)] * ranks
    for step in range(steps):
        compensated = [drawn(i, step).numpy()[:, 0] + left[i] for i in range(ranks)]
        back, left = definition.step(step, compensated)
        for i, one in enumerate(each[step] for each in found):
            where = f"step {step}, rank {i}"
            np.testing.assert_allclose(one["average"][:, 0], back, atol=1e-12, err_msg=where)
            np.testing.assert_allclose(one["residual"][:, 0], left[i], atol=1e-12, err_msg=where)
            np.testing.assert_allclose(one["mine"][0], definition.own[i], rtol=1e-12, err_msg=where)
            np.testing.assert_allclose(one["common"][0], definition.common, rtol=1e-12, err_msg=where)
            assert one["starts"][:-1].tolist() == definition.starts, where
    wanted = {"few", "raised", "too many", "fewer"} | ({"many", "more", "none"} if ranks > 1 else set())
    assert wanted <= set(definition.seen), "the gradients must lead through all that is defined"


class Counting(ThreadCommunicator):
    """Counts the bytes that a rank exchanges."""

    def __init__(self, like: LocalCommunicator):
        super().__init__(like.rank, like._world)
        self.exchanged = list[int]()

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        assert sum(sizes) == tensor.numel() and len(sizes) == self.world_size
        self.exchanged.append(tensor.nbytes)
        return super().all_to_all(tensor, sizes, name)


def test_what_is_selected_stays_below_the_bound() -> None:
    """That is 4 k / 3 elements, of 8 bytes each."""
    steps, k = 12, 240

    def rank(communicator: LocalCommunicator) -> None:
        counting, model = Counting(communicator), Given(torch.float32, weight=(SIZE, 1))
        wrapped = torch.optim.SGD(model.parameters(), 1.0)
        optimizer = resireduce.distribute(model, wrapped, "baseline", OkTopK(0.02), backend=counting)
        for step in range(steps):
            average(model, optimizer, drawn(communicator.rank, 0).float() * (1 + 0.001 * step))
        assert len(counting.exchanged) == steps and max(counting.exchanged) <= 8 * 4 * k / 3

    LocalWorld(4).run(rank)
    planned = OkTopK(0.02).for_world(4).compress(torch.empty(SIZE, 1, device="meta"), "w", 0)
    assert planned.nbytes == 8 * (k + k) + 8 * 4, "a plan reckons with a step in which everything is found"


# --- what it sends ---


def test_an_average_is_not_lost_where_a_sum_is_beyond_half_precision() -> None:
    def rank(communicator: Communicator) -> Tensor:
        model = Given(torch.float16, weight=(SIZE, 1))
        optimizer = resireduce.distribute(
            model, torch.optim.SGD(model.parameters(), 1.0), "baseline", OkTopK(0.01), backend=communicator
        )
        gradient = torch.zeros(SIZE, 1, dtype=torch.float16)
        gradient[7] = 40_000.0
        return average(model, optimizer, gradient)[7]

    assert [float(back) for back in LocalWorld(4).run(rank)] == [40_000.0] * 4


# --- other ways to train ---


def test_states_of_another_number_of_ranks_are_shared_out_and_regions_found_anew() -> None:
    def first(communicator: Communicator) -> dict[str, Tensor]:
        model, optimizer = distributed(communicator)
        for step in range(3):
            average(model, optimizer, drawn(communicator.rank, step))
        return optimizer.residual_state_dict()

    states = LocalWorld(3).run(first)

    def second(communicator: Communicator) -> tuple[Tensor, Tensor, Tensor]:
        model, optimizer = distributed(communicator)
        resireduce.redistribute(optimizer, states)
        left = held(optimizer, "residual")
        back = average(model, optimizer, drawn(communicator.rank, 3))
        return left, back, held(optimizer, "starts")

    (left, back, starts), (other, theirs, _) = LocalWorld(2).run(second)
    torch.testing.assert_close((left + other) / 2, sum(state["full.weight"] for state in states) / 3)
    assert torch.equal(back, theirs) and back.any()
    assert len(starts) == 3 and starts[-1] == 4, "in the first step regions are found"


# --- what cannot be ---


class Bare(LocalCommunicator):
    """A communicator of a user's own, from before there was an exchange."""

    all_to_all = Communicator.all_to_all


def test_a_backend_without_an_exchange_is_refused_before_anything_is_changed() -> None:
    model = Given(weight=(SIZE, 1))
    with pytest.raises(ConfigError, match=r"compressor: OkTopK is not allowed over Bare, .* all_to_all\(\)"):
        resireduce.distribute(
            model, torch.optim.SGD(model.parameters(), 1.0), compressor=OkTopK(0.1), backend=Bare(), scheme="baseline"
        )
    assert not model.weight._post_accumulate_grad_hooks
