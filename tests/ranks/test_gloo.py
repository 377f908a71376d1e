"""The same contracts between processes, over gloo."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.scheme import GRADIENTS
from tests.processes import Checks, all_equal, check_collectives_between, on_processes
from tests.worlds import KINDS, OPTIMIZERS, Net, loss_of, same, seeded, train, train_world


def check_ddp(communicator: Communicator) -> None:
    """None = DistributedDataParallel, and top-k of everything = none."""
    for optimizer in ("nesterov", "adamw", "second-moment"):
        start = seeded(lambda: nn.Sequential(nn.Linear(600, 72), nn.ReLU(), nn.Linear(72, 150), nn.Linear(150, 10)))
        plain = copy.deepcopy(start)
        parallel = DistributedDataParallel(plain)
        reference = OPTIMIZERS[optimizer](list(plain.parameters()))
        generator = torch.Generator().manual_seed(communicator.rank)
        for _ in range(4):
            reference.zero_grad()
            loss_of(parallel, generator).backward()
            reference.step()
        for gradients in ("kept", "streamed"):
            options = {"optimizer": optimizer, "steps": 4, "gradients": gradients}
            for more in ({"compressor": "none"}, {"density": 1.0, "scheme": "baseline"}, {"density": 1.0}):
                model, _ = train(communicator, start, **options, **more)
                assert same(model, plain), (options, more)


def check_lifetimes(communicator: Communicator) -> None:
    """Gloo = the local world, in which tests/contracts find that streamed is kept and that ranks agree."""
    start = seeded(Net)
    for scheme, compressor in (("w+2d", "topk"), *(("baseline", name) for name in KINDS)):
        for gradients in GRADIENTS if compressor == "topk" else ("streamed",):
            options = {"scheme": scheme, "compressor": compressor, "steps": 3, "gradients": gradients}
            trained, _ = train(communicator, start, **options)
            assert same(train_world(2, start, **options)[0][0], trained) and not same(trained, start)


def check_start(communicator: Communicator) -> None:
    """Ranks that start from different parameters, buffers and optimizer states go on from rank 0's."""
    model = seeded(Net, seed=communicator.rank)
    model.norm.running_mean.fill_(communicator.rank)
    assert not all_equal(model)
    trained, _ = train(communicator, model, steps=0)
    assert all_equal(trained) and trained.norm.running_mean.sum() == 0


def check_optimizer_of_rank_0(communicator: Communicator) -> None:
    """Only rank 0 has loaded a checkpoint: the others take its state and its learning rate."""
    model = seeded(Net)
    wrapped = OPTIMIZERS["adamw"](list(model.parameters()))
    if communicator.rank == 0:
        loss_of(model, torch.Generator()).backward()
        wrapped.step()
        wrapped.param_groups[0]["lr"] = 0.25
    optimizer = resireduce.distribute(model, wrapped, backend=communicator)
    assert wrapped.param_groups[0]["lr"] == 0.25
    loss_of(model, torch.Generator().manual_seed(communicator.rank)).backward()
    optimizer.step()
    assert all(state["step"] == 2 for state in wrapped.state.values()) and all_equal(model)


def check_collectives_of_the_user(communicator: Communicator) -> None:
    model = seeded(lambda: nn.ModuleList(nn.Linear(120, 120) for _ in range(4)))
    optimizer = resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "baseline")
    check_collectives_between(optimizer, model, model if communicator.rank else [model[0], model[3]])


def check_ragged(communicator: Communicator) -> None:
    """Ranks send different numbers of elements, none at times, and wait at different places."""
    mine = [torch.full((size * communicator.rank,), size, dtype=torch.uint8) for size in (0, 3, 70)]
    launched, received = [], []
    for number, tensor in enumerate(mine):
        launched.append(communicator.all_gather(tensor, f"ragged {number}", equal_sizes=False))
        if communicator.rank == 0:
            received.append(launched[-1].wait())
    summed = communicator.all_reduce(torch.ones(2), "sum").wait()
    received = received or [handle.wait() for handle in launched]
    assert summed.tolist() == [communicator.world_size] * 2
    for size, rows in zip((0, 3, 70), received, strict=True):
        assert [row.tolist() for row in rows] == [[size] * size * rank for rank in range(communicator.world_size)]


def check_exchange(communicator: Communicator) -> None:
    """Each rank sends each other another number of elements, or none, and may wait for it at any place."""
    rank, world_size = communicator.rank, communicator.world_size
    launched, received = [], []
    for number in range(3):
        sizes = [0 if number == 2 else (rank + 2 * other + number) % 4 for other in range(world_size)]
        rows = [torch.full((size,), 100 * rank + other, dtype=torch.int32) for other, size in enumerate(sizes)]
        launched.append(communicator.all_to_all(torch.cat(rows), sizes, f"exchange {number}"))
        if rank == 0:
            received.append(launched[-1].wait())
    gathered = communicator.all_gather(torch.arange(rank), "between", equal_sizes=False)
    summed = communicator.all_reduce(torch.ones(2), "sum").wait()
    assert summed.tolist() == [world_size] * 2 and [len(row) for row in gathered.wait()] == list(range(world_size))
    for number, rows in enumerate(received or [handle.wait() for handle in launched]):
        for other, row in enumerate(rows):
            size = 0 if number == 2 else (other + 2 * rank + number) % 4
            assert row.dtype == torch.int32 and row.tolist() == [100 * other + rank] * size


def check_staged(communicator: Communicator) -> None:
    """Through copies, as a GPU's tensors travel over gloo: the same collectives, and the same training bit for bit."""
    start, options = seeded(Net), {"scheme": "w+2d", "compressor": "topk", "gradients": "streamed", "steps": 5}
    direct, _ = train(communicator, start, **options)
    copying = TorchCommunicator()
    near = copying._near
    copying._near = lambda tensor: near(tensor).clone()  # type: ignore[method-assign]  (no GPU here)
    check_ragged(copying)
    check_exchange(copying)
    mine = torch.full((3, 2), float(copying.rank), dtype=torch.float64).t()
    handle = copying.all_reduce(mine, "sum")
    assert mine.eq(copying.rank).all(), "the sum came before it was waited for: nothing was copied"
    assert handle.wait() is mine and mine.eq(sum(range(copying.world_size))).all()
    first = torch.tensor([copying.rank + 5])
    assert copying.broadcast_(first, "start") is first and first.item() == 5
    assert same(train(copying, start, **options)[0], direct)


OF_FOUR: tuple[Checks, ...] = (check_ragged, check_exchange, check_start, check_collectives_of_the_user)
"""What four processes check: collectives, and the start. tests/contracts trains on more than two ranks."""
OF_TWO = (*OF_FOUR, check_staged, check_ddp, check_lifetimes, check_optimizer_of_rank_0)


@pytest.mark.parametrize(("world_size", "checks"), [(2, OF_TWO), (4, OF_FOUR)])
def test_processes(world_size: int, checks: tuple[Checks, ...]) -> None:
    on_processes(world_size, *checks)
