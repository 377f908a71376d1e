"""Two phases: what ranks exchange, keep and remember, against the definition in NumPy; what is sent and saved."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import PretendCommunicator
from resireduce.compressors.quantized import Fp8
from resireduce.compressors.two_phase import Fp8TwoPhase
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError
from resireduce.plan import plan
from tests.threads import LocalWorld
from tests.worlds import Given, averages, distribute_given

SIZE, BLOCK, STEPS = 20_003, 256, 5
KINDS = {"block8-two-phase": 127, "block4-two-phase": 7, "fp8-two-phase": None}
"""Levels on each side of zero; None: floats."""
ABSENT = {2: (1,), 3: (0, 1, 2, 3)}
"""By step, the ranks that have no gradient."""


def drawn(rank: int, step: int) -> Tensor:
    """A gradient whose blocks differ in size, one of them zero."""
    values = torch.randn(SIZE, 1, generator=torch.Generator().manual_seed(1000 * rank + step), dtype=torch.float64)
    values[:BLOCK] = 0
    return values * torch.logspace(-3, 2, SIZE, dtype=torch.float64).unsqueeze(1)


distributed = partial(distribute_given, shapes={"weight": (SIZE, 1)})


def average(model: Given, optimizer: DistributedOptimizer, gradient: Tensor | None) -> np.ndarray:
    """What a step brings back of this rank's gradient; None: it has none."""
    moved = averages(model, optimizer, {} if gradient is None else {"weight": gradient})["weight"]
    return moved.flatten().numpy()


# --- the definition: all ranks at once, in float64 ---


def floats() -> np.ndarray:
    """All floats of four bits of exponent and three of mantissa, without the two codes that are NaN."""
    found = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        found.append(mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.array(found)


def rounded(values: np.ndarray) -> np.ndarray:
    """The nearest of `floats`, of float32, as torch makes them; of two that are as near, the one with an even code."""
    values = values.astype(np.float32).astype(np.float64)
    table = floats()
    above = np.searchsorted(table, np.abs(values)).clip(0, len(table) - 1)
    below = (above - 1).clip(0)
    up, down = table[above] - np.abs(values), np.abs(values) - table[below]
    chosen = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return np.sign(values) * table[chosen]


def quantised(part: np.ndarray, levels: int | None) -> np.ndarray:
    out = np.zeros_like(part)
    for start in range(0, len(part), BLOCK):
        block = part[start : start + BLOCK]
        if largest := np.abs(block).max():
            if levels is None:
                shares = rounded(block / largest * 448) / 448
            else:
                shares = np.rint(block / largest * levels) / levels
            out[start : start + BLOCK] = shares * largest
    return out


class Definition:
    """Tang et al., section 4.2, with blocks."""

    def __init__(self, ranks: int, levels: int | None):
        self.ranks, self.levels = ranks, levels
        self.size = -(-SIZE // (8 * ranks)) * 8
        self.residuals = [np.zeros(SIZE) for _ in range(ranks)]
        self.owned = [np.zeros(self.size) for _ in range(ranks)]

    def parts(self, flat: np.ndarray) -> list[np.ndarray]:
        padded = np.concatenate([flat, np.zeros(self.ranks * self.size - SIZE)])
        return [quantised(part, self.levels) for part in padded.reshape(self.ranks, self.size)]

    def step(self, gradients: list[np.ndarray | None]) -> np.ndarray:
        if all(one is None for one in gradients):
            return np.zeros(SIZE)
        sent = []
        for rank, gradient in enumerate(gradients):
            whole = np.zeros(SIZE) if gradient is None else gradient + self.residuals[rank]
            sent.append(self.parts(whole))
            if gradient is not None:
                self.residuals[rank] = whole - np.concatenate(sent[rank])[:SIZE]
        means = []
        for owner in range(self.ranks):
            mean = sum(one[owner] for one in sent) / self.ranks + self.owned[owner]
            means.append(quantised(mean, self.levels))
            self.owned[owner] = mean - means[owner]
        return np.concatenate(means)[:SIZE]


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("compressor", KINDS)
def test_steps_are_those_of_the_definition(compressor: str, ranks: int, gradients: str) -> None:
    definition = Definition(ranks, KINDS[compressor])
    there = [[None if r in ABSENT.get(step, ()) else drawn(r, step) for r in range(ranks)] for step in range(STEPS)]
    expected = [definition.step([None if one is None else one.flatten().numpy() for one in its]) for its in there]

    def train(communicator: Communicator) -> tuple[list[np.ndarray], dict[str, Tensor]]:
        model, optimizer = distributed(communicator, compressor=compressor, gradients=gradients)
        found = [average(model, optimizer, its[communicator.rank]) for its in there]
        return found, {name: one.clone() for name, one in optimizer.residual_state_dict().items()}

    for rank, (found, state) in enumerate(LocalWorld(ranks).run(train)):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)
        np.testing.assert_allclose(state["full.weight"].flatten().numpy(), definition.residuals[rank], atol=1e-9)
        np.testing.assert_allclose(state["compressor.weight.owned"].numpy(), definition.owned[rank], atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("compressor", "most"), [("block8-two-phase", 127), ("block4-two-phase", 7)])
def test_a_mean_of_levels_that_is_a_level_is_exact(compressor: str, most: int, dtype: torch.dtype) -> None:
    own = torch.arange(SIZE) % (most + 1)
    values = own, own % 2 + 2 * (torch.arange(SIZE) * 5 % (most // 2))
    for one in values:
        one[::8] = most  # the largest of every block

    def train(communicator: Communicator) -> Tensor:
        model = nn.Linear(1, SIZE, bias=False).to(dtype)
        nn.init.zeros_(model.weight)
        wrapped = torch.optim.SGD(model.parameters(), 1.0)
        optimizer = resireduce.distribute(model, wrapped, "baseline", compressor, backend=communicator)
        (model.weight[:, 0] * values[communicator.rank].to(dtype)).sum().backward()
        optimizer.step()
        return -model.weight[:, 0].detach()

    for moved in LocalWorld(2).run(train):
        torch.testing.assert_close(moved, ((values[0] + values[1]) // 2).to(dtype), rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    ("compressor", "bits"), [("block8-two-phase", 8), ("block4-two-phase", 4), ("fp8-two-phase", 8)]
)
@pytest.mark.parametrize("ranks", [2, 16])
def test_a_rank_sends_as_many_bytes_whatever_the_number_of_ranks(compressor: str, bits: int, ranks: int) -> None:
    sent = []

    class Counting(PretendCommunicator):
        """Adds up what this rank hands to exchanges and gathers."""

        def all_to_all(self, tensor: Tensor, sizes: object, name: str) -> object:
            sent.append(tensor.nbytes)
            return super().all_to_all(tensor, sizes, name)  # type: ignore[arg-type]

        def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> object:
            sent.append(tensor.nbytes * (self.world_size - 1))
            return super().all_gather(tensor, name, equal_sizes)

    model = nn.Linear(1000, 1000, bias=False, device="meta")
    optimizer = resireduce.distribute(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        "baseline",
        compressor,
        backend=Counting(ranks),  # type: ignore[abstract]
    )
    model(torch.ones(1, 1000, device="meta")).sum().backward()
    optimizer.step()
    assert len(sent) == 2 and bits / 8 < sent[0] / 1e6 < 1.05 * bits / 8 and sum(sent) / 1e6 < bits / 4 + 0.1


def test_a_plan_counts_what_the_owner_remembers() -> None:
    def linear() -> nn.Module:
        return nn.Linear(1000, 1000, bias=False)

    with_state, without = (
        plan(linear, scheme="none", compressor=name, world_size=4)["total"] for name in ("block8-two-phase", "block8")
    )
    assert with_state - without == 4 * 250_000


def test_only_floats_of_8_bits_are_taken() -> None:
    with pytest.raises(ConfigError, match="form: 'e3m4' is not allowed; give e4m3 or e5m2"):
        Fp8("e3m4")
    with pytest.raises(ConfigError, match="block: 0"):
        Fp8(block=0)
    assert Fp8TwoPhase(Fp8("e5m2")).for_world(3).ranks == 3
