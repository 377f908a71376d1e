"""DGCSGD against its recursion, against torch's SGD with momentum, and under `distribute`."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.dgc import DGC
from resireduce.optim import DGCSGD, SecondMomentAdamW
from tests.threads import LocalWorld
from tests.worlds import Net, same, seeded

SHAPES = ((30, 20), (7,), (2, 3, 4))
DECAY = 0.03


def draws(steps: int, seed: int = 0) -> list[list[np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [[generator.standard_normal(shape) for shape in SHAPES] for _ in range(steps)]


def by_recursion(
    start: list[np.ndarray], grads: list[list[np.ndarray]], rates: list[float], momentum: float, nesterov: bool
) -> list[np.ndarray]:
    """The values after all steps, of decay with a momentum of its own; the first tensor has no decay."""
    ends = []
    for i, begin in enumerate(start):
        value, u, decay = begin, np.zeros_like(begin), DECAY if i else 0.0
        for rate, step in zip(rates, grads, strict=True):
            u = momentum * u + decay * value
            value = value - rate * (step[i] + (decay * value + momentum * u if nesterov else u))
        ends.append(value)
    return ends


def groups(parameters: list[nn.Parameter]) -> list[dict[str, object]]:
    return [{"params": parameters[:1], "weight_decay": 0.0}, {"params": parameters[1:]}]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_steps_follow_the_recursion(momentum: float, nesterov: bool) -> None:
    (start,), grads = draws(1, 1), draws(8, 2)
    rates = np.random.default_rng(3).uniform(1e-3, 0.3, 8).tolist()
    parameters = [nn.Parameter(torch.tensor(value)) for value in start]
    optimizer = DGCSGD(groups(parameters), 1.0, momentum, nesterov, DECAY)
    for rate, step in zip(rates, grads, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, grad in zip(parameters, step, strict=True):
            parameter.grad = torch.tensor(grad)
        assert optimizer.step(lambda: 7.0) == 7.0
        assert all(np.array_equal(p.grad.numpy(), g) for p, g in zip(parameters, step, strict=True))
    for found, expected in zip(parameters, by_recursion(start, grads, rates, momentum, nesterov), strict=True):
        assert np.allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-13)


def double() -> nn.Module:
    return Net().double()


def batch_loss(model: nn.Module, seed: int) -> Tensor:
    x = torch.randn(6, 600, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return nn.functional.cross_entropy(model(x), torch.arange(6))


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_where_all_is_sent_dense_it_is_torchs_sgd_with_momentum_and_decay(nesterov: bool, gradients: str) -> None:
    settings = {"nesterov": nesterov, "weight_decay": DECAY}
    start = seeded(double)
    plain = copy.deepcopy(start)
    reference = torch.optim.SGD(plain.parameters(), 0.05, 0.9, **settings)

    def rank(communicator: Communicator) -> nn.Module:
        model = copy.deepcopy(start)
        optimizer = resireduce.distribute(
            model,
            DGCSGD(model.parameters(), 0.05, 0.9, **settings),
            "baseline",
            DGC(0.01, momentum_factor=0.9, nesterov=nesterov),
            backend=communicator,
            gradients=gradients,
            dense=["*"],
        )
        for step in range(6):
            optimizer.zero_grad()
            batch_loss(model, 2 * step + communicator.rank).backward()
            optimizer.step()
        return model

    for step in range(6):
        reference.zero_grad()
        ((batch_loss(plain, 2 * step) + batch_loss(plain, 2 * step + 1)) / 2).backward()
        reference.step()
    first, second = LocalWorld(2).run(rank)
    assert same(first, second)
    for (name, found), expected in zip(first.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=name)


# --- AdamW without a first moment ---


@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_without_a_first_moment_it_is_torchs_adamw(form: dict[str, bool]) -> None:
    """To the bit where torch updates one parameter after the other; its other forms round otherwise."""
    (start,), given = draws(1, 1), {"lr": 0.01, "eps": 1e-6, "weight_decay": DECAY}
    mine, other = ([nn.Parameter(torch.tensor(value)) for value in start] for _ in range(2))
    both = SecondMomentAdamW(mine, beta=0.99, **given), torch.optim.AdamW(other, betas=(0.0, 0.99), **given, **form)
    for step in draws(100, 2):
        for parameters, optimizer in zip((mine, other), both, strict=True):
            for parameter, grad in zip(parameters, step, strict=True):
                parameter.grad = torch.tensor(grad)
            optimizer.step()
    for one, expected in zip(mine, other, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-12, atol=1e-13)
        assert form != {"foreach": False} or torch.equal(one, expected)
    held = [sum(tensor.nbytes for state in one.state.values() for tensor in state.values()) for one in both]
    assert held[1] - held[0] == sum(parameter.nbytes for parameter in mine), "torch's holds one state more"
