"""Is the oracle right? It is plain training, DistributedDataParallel, and the definitions of error feedback."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from resireduce.comm.base import Communicator
from tests import oracle
from tests.habits.script import Net, Script
from tests.oracle import Averaging, Ranks
from tests.processes import on_processes
from tests.worlds import same, seeded


def script(rank: int, size: int, start: nn.Module, ranks: Ranks) -> Script:
    def distribute(model: nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> object:
        return oracle.distribute(ranks, rank, model, optimizer, **options)

    return Script(rank, size, "kept", start, distribute, library=False)


def trained(size: int, steps: int = 4, **options: object) -> list[nn.Module]:
    ranks, start = Ranks(size), seeded(Net)

    def work(rank: int) -> nn.Module:
        one = script(rank, size, start, ranks)
        model = one.net()
        one.train(model, one.sgd(model, **options), steps)
        return model

    return ranks.run(work)


def test_one_rank_without_compression_is_plain_training() -> None:
    plain = seeded(Net)
    one = script(0, 1, plain, Ranks(1))
    one.train(plain, torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9), 4)
    assert same(trained(1, compressor="none")[0], plain)
    assert same(trained(1, density=1.0)[0], plain)
    assert not same(trained(1)[0], plain)


def in_parallel(folder: Path, communicator: Communicator) -> None:
    parallel = DistributedDataParallel(seeded(Net))
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1, momentum=0.9)
    one = script(communicator.rank, 2, parallel.module, Ranks(1))
    for step in range(4):
        optimizer.zero_grad()
        one.loss(parallel, step).backward()
        nn.utils.clip_grad_norm_(parallel.parameters(), 0.3)
        optimizer.step()
    torch.save(parallel.module.state_dict(), folder / f"{communicator.rank}.pt")


def test_without_compression_it_is_ddp_that_clips(tmp_path: Path) -> None:
    on_processes(2, partial(in_parallel, tmp_path))
    models = trained(2, compressor="none", max_grad_norm=0.3)
    for rank, model in enumerate(models):
        theirs = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert all(torch.equal(theirs[name], mine) for name, mine in model.state_dict().items())


@pytest.mark.parametrize("density", [0.01, 0.3])
def test_what_was_sent_and_what_is_kept_is_the_gradient(density: float) -> None:
    """Of each rank, over several steps; and of each tensor just the largest are sent."""
    ranks = Ranks(2)
    start = seeded(lambda: nn.Sequential(nn.Linear(120, 100), nn.Linear(100, 5)).double())

    def work(rank: int) -> tuple[Tensor, Tensor]:
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        averaging = Averaging(ranks, rank, model, optimizer, density=density)
        generator, total = torch.Generator().manual_seed(rank), torch.zeros(100, 120, dtype=torch.float64)
        for _ in range(5):
            before = averaging.residuals["0.weight"].clone()
            grad = torch.randn(100, 120, generator=generator, dtype=torch.float64)
            sent = averaging._sent("0.weight", grad)
            kept = averaging.residuals["0.weight"]
            assert torch.equal(sent + kept, before + grad)
            assert int((sent != 0).sum()) == int(density * 12_000)
            assert kept.abs().max() <= sent[sent != 0].abs().min()
            total += grad - sent
        return total, averaging.residuals["0.weight"]

    for total, residual in ranks.run(work):
        torch.testing.assert_close(total, residual)


def test_a_rank_without_gradient_sends_zeros_and_keeps_its_residual() -> None:
    ranks = Ranks(2)
    start = seeded(lambda: nn.Linear(120, 100))

    def work(rank: int) -> tuple[nn.Module, Tensor, Tensor]:
        model = copy.deepcopy(start)
        optimizer = oracle.distribute(ranks, rank, model, torch.optim.SGD(model.parameters(), 1.0, weight_decay=0.1))
        model(torch.randn(3, 120, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
        optimizer.step()
        before = optimizer.averaging.residuals["weight"].clone()
        optimizer.zero_grad()
        weights = model.weight.detach().clone()
        if rank == 1:
            model.weight.grad = torch.ones_like(model.weight).cumsum(0).cumsum(1)
        optimizer.step()
        moved = weights - model.weight.detach() - 0.1 * weights
        return model, before - optimizer.averaging.residuals["weight"], moved

    (first, kept, moved), (second, changed, _) = ranks.run(work)
    assert same(first, second) and not kept.any() and changed.any()
    assert int((moved.abs() > 1e-3).sum()) == 120, "half of what the other has sent, and decay everywhere"
    assert torch.equal(first.bias, second.bias)
