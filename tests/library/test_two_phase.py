"""Two phases: what ranks exchange, keep and remember, against the definition in NumPy; what is sent and saved."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from resireduce.comm.base import Communicator
from resireduce.compressors.quantized import Block4
from resireduce.compressors.two_phase import Block8TwoPhase
from resireduce.core.messages import Payload
from resireduce.core.optimizer import DistributedOptimizer
from tests.threads import LocalWorld
from tests.worlds import Given, averages, distribute_given, reloaded

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
    found = averages(model, optimizer, {} if gradient is None else {"weight": gradient})
    return found["weight"].flatten().numpy()


# --- three steps by hand: two ranks, two parts of eight elements, whole numbers up to 7 ---


def exchanged(ranks: list[Block8TwoPhase], gradients: list[Tensor], states: list[dict[str, Tensor]]) -> list[Payload]:
    """The payloads of ranks whose parts are exchanged, and whose means are gathered."""
    rounds = [one.agree(g, "w", 0, state) for one, g, state in zip(ranks, gradients, states, strict=True)]
    parts = [next(one).tensor.chunk(len(ranks)) for one in rounds]  # type: ignore[union-attr]
    means = [one.send([theirs[rank] for theirs in parts]).tensor for rank, one in enumerate(rounds)]  # type: ignore[union-attr]
    payloads = []
    for one in rounds:
        with pytest.raises(StopIteration) as made:
            one.send(means)
        payloads.append(made.value.value)
    return payloads


def test_three_steps_by_hand() -> None:
    ranks = [Block8TwoPhase(Block4(block=8)).for_world(2)] * 2
    gradients = torch.zeros(2, 16)
    gradients[:, 0] = 7  # the largest of the first part, whose levels are whole numbers then
    gradients[:, 1] = 0.4  # each rank loses it, until it is 0.8
    gradients[0, 2] = 1  # a mean of 0.5, which its owner loses, until it is 1
    gradients[:, 8] = torch.tensor([7.0, -7.0])  # nothing of the second part is left
    residuals, states = torch.zeros(2, 16), [ranks[0].state(torch.Size([16]), gradients)] * 2
    states = [{key: one.clone() for key, one in state.items()} for state in states]
    averages, lefts, owned = [], [], []
    for _ in range(3):
        compensated = [*(gradients + residuals)]
        payloads = exchanged(ranks, compensated, states)
        for rank, payload in enumerate(payloads):
            residuals[rank] = ranks[rank].error_(compensated[rank].clone(), payload)
            ranks[rank].learn_(states[rank], payload)
        known = payloads[0].known
        assert known is not None and payloads[1].known is not None and torch.equal(known, payloads[1].known)
        averages.append(ranks[0].combine_(torch.empty(16), [payloads[0].received(known)], 0.5)[:3].tolist())
        lefts.append(residuals[0][1].item())
        owned.append(states[0]["owned"][:3].tolist())
        assert not states[1]["owned"].any() and not residuals[:, 8].any()
    assert averages == [pytest.approx(one, abs=1e-6) for one in ([7, 0, 0], [7, 1, 1], [7, 0, 0])]
    assert lefts == pytest.approx([0.4, -0.2, 0.2], abs=1e-6)
    assert owned == [pytest.approx(one, abs=1e-6) for one in ([0, 0, 0.5], [0, 0, 0], [0, 0, 0.5])]


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


@pytest.mark.parametrize("compressor", KINDS)
def test_training_goes_on_from_what_was_saved_bit_for_bit(compressor: str) -> None:
    def train(communicator: Communicator, stops: bool) -> tuple[Tensor, dict[str, Tensor]]:
        model, optimizer = distributed(communicator, compressor=compressor)
        for step in range(4):
            if stops and step == 2:
                weights, state = model.weight.detach().clone(), reloaded(optimizer.residual_state_dict())
                optimizer.close()
                model, optimizer = distributed(communicator, compressor=compressor)
                model.weight.data.copy_(weights)
                optimizer.load_residual_state_dict(state)
            average(model, optimizer, drawn(communicator.rank, step))
        return model.weight.detach(), optimizer.residual_state_dict()

    whole, halved = (LocalWorld(2).run(lambda one, stops=stops: train(one, stops)) for stops in (False, True))
    for (weights, state), (others, theirs) in zip(whole, halved, strict=True):
        assert torch.equal(weights, others) and state.keys() == theirs.keys()
        assert all(torch.equal(one, theirs[name]) for name, one in state.items())
