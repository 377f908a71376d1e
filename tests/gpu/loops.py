"""Training loops on a device, of the small network that the tests of the library share."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.scheme import COMPRESSORS
from tests.worlds import OPTIMIZERS, Net, seeded, sgd_for

STEPS = 4
SOME = ("topk", "threshold", "fp16", "qsgd", "signsgd", "powersgd", "ok-topk")
"""Compressors that gather, sum, vote and agree in rounds."""


def compressors(device: torch.device) -> Iterable[str]:
    """All but none; on a CPU some, as `tests/ranks` has the others there."""
    return SOME if device.type == "cpu" else [name for name in COMPRESSORS if name != "none"]


def net(device: torch.device) -> nn.Module:
    """Return the small network on a device, with the same parameters every time."""
    return seeded(Net).to(device)


def batches(device: torch.device, rank: int = 0, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Return inputs and labels of all steps, which are on the device before training begins."""
    generator = torch.Generator().manual_seed(rank)
    made = [
        (torch.randn(6, 600, generator=generator), torch.randint(10, (6,), generator=generator)) for _ in range(steps)
    ]
    return [(x.to(device), y.to(device)) for x, y in made]


def distributed(
    model: nn.Module,
    communicator: Communicator | None = None,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    **options: object,
) -> DistributedOptimizer:
    """Distribute an optimizer, SGD with momentum unless another is given, at density 0.05 unless options say more."""
    wrapped = (optimizer or OPTIMIZERS[sgd_for(options)])(list(model.parameters()))
    options = {"density": 0.05, **options}
    return resireduce.distribute(model, wrapped, backend=communicator or LocalCommunicator(), **options)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Take one training step, and return its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def trained(
    device: torch.device,
    autocast: torch.dtype | None = None,
    scaler: resireduce.GradScaler | None = None,
    compiled: str | None = None,
    steps: int = STEPS,
    communicator: Communicator | None = None,
    **options: object,
) -> nn.Module:
    """Return the network after some steps of training; options are those of `distributed`."""
    model = net(device)
    optimizer = distributed(model, communicator, grad_scaler=scaler, **options)
    called = model if compiled is None else torch.compile(model, backend=compiled)
    for x, y in batches(device, 0 if communicator is None else communicator.rank, steps):
        optimizer.zero_grad()
        with nullcontext() if autocast is None else torch.autocast(device.type, autocast):
            loss = nn.functional.cross_entropy(called(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert not any(parameter.device.type != device.type for parameter in model.parameters())
    optimizer.close()
    return model


@contextmanager
def stream_beside(device: torch.device) -> Iterator[None]:
    """Within it a GPU works in a stream that is not its usual one, which is waited for at the end."""
    if device.type != "cuda":
        yield
        return
    beside = torch.cuda.Stream(device)
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside):
        yield
    torch.cuda.current_stream(device).wait_stream(beside)
