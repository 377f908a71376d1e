"""Torch's own communication hooks, which compress in DistributedDataParallel, train the same parameters.

Equal on both sides are the model, each rank's batches, the optimizer, and that the two first steps are dense, since
the hook begins with the third at the earliest; and each matrix Q at the start, which the hook would draw by its own.
"""

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from resireduce.comm.base import Communicator
from resireduce.compressors.powersgd import PowerSGD
from tests.processes import on_processes
from tests.worlds import OPTIMIZERS, same, seeded, take_steps, train

STEPS, DENSE_STEPS, CLASSES = 30, 2, 2


def start() -> nn.Module:
    """In float64: weights of two shapes that are compressed with any rank here, and what either sends as it is."""
    layers = nn.Linear(600, 80, bias=False), nn.Tanh(), nn.Linear(80, 130), nn.Tanh(), nn.Linear(130, CLASSES)
    return nn.Sequential(*layers).double()


def loss_of(model: nn.Module, generator: torch.Generator) -> Tensor:
    x = torch.randn(6, 600, generator=generator, dtype=torch.float64)
    return nn.functional.cross_entropy(model(x), torch.randint(CLASSES, (6,), generator=generator))


def train_hooked(
    communicator: Communicator,
    model: nn.Module,
    state: object,
    hook: Callable[[object, dist.GradBucket], Future[Tensor]],
    loss: Callable[[nn.Module, torch.Generator], Tensor],
) -> nn.Module:
    """As `train`, in DistributedDataParallel with a hook, all of whose gradients are in one bucket."""
    model = copy.deepcopy(model)
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(state, hook)
    optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
    generator = torch.Generator().manual_seed(communicator.rank)
    take_steps(optimizer, lambda: loss(parallel, generator), STEPS)
    return model


class SameStart:
    """The hook's state, and its matrices Q as `PowerSGD` has them at the start, in the order of the bucket."""

    def __init__(self, compressor: PowerSGD):
        self.compressor = compressor
        self.state = PowerSGDState(None, compressor.rank, start_powerSGD_iter=DENSE_STEPS)
        self.compressed: list[tuple[int, ...]] = []

    def hook(self, bucket: dist.GradBucket) -> Future[Tensor]:
        if self.state.iter == DENSE_STEPS:
            like = [p for p in bucket.parameters() if p.dim() > 1 and self.compressor.compresses(p.shape)]
            self.compressed = [tuple(p.shape) for p in like]
            qs = [self.compressor.state(p.shape, p)["q"].T for p in like]
            ps = [torch.empty(len(p), q.shape[1], dtype=p.dtype) for p, q in zip(like, qs, strict=True)]
            for held, parts in ((self.state.p_memory_dict, ps), (self.state.q_memory_dict, qs)):
                held[bucket.index()] = torch.cat([part.flatten() for part in parts])
        return powerSGD_hook(self.state, bucket)


def compare(ours: nn.Module, theirs: nn.Module, start: nn.Module, atol: float) -> None:
    for mine, other, first in zip(*(one.parameters() for one in (ours, theirs, start)), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=atol)
        assert float((mine - first).detach().abs().max()) > 0.05, "it must have gone far beside that"


def check_powersgd(communicator: Communicator) -> None:
    model = seeded(start)
    for rank in (1, 2, 4):  # the hook makes columns orthonormal in another way from 3 on
        given = SameStart(PowerSGD(rank))
        theirs = train_hooked(communicator, model, given, SameStart.hook, loss_of)
        assert given.compressed == [(130, 80), (80, 600)]
        for gradients in ("kept", "streamed"):
            ours, _ = train(
                communicator, model, compressor=given.compressor, scheme="baseline", gradients=gradients, steps=STEPS,
                warm_up_steps=DENSE_STEPS, loss=loss_of,
            )  # fmt: skip
            compare(ours, theirs, model, atol=1e-10)


class Weight(nn.Module):
    """One weight, whose gradient is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(80, 600))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def far_from_zero(model: nn.Module, generator: torch.Generator) -> Tensor:
    """A loss whose gradient, and the sum of two ranks', are multiples of 2^-13, so that float16 can halve them."""
    normal = torch.randn(80, 600, generator=generator)
    return model(normal.add(normal.sign() / 8))


def check_half(communicator: Communicator) -> None:
    """The hook divides by the number of ranks before it sums, which would round the smallest numbers of float16."""
    model = seeded(Weight)
    theirs = train_hooked(communicator, model, None, fp16_compress_hook, far_from_zero)
    ours, _ = train(communicator, model, compressor="fp16", scheme="none", steps=STEPS, loss=far_from_zero)
    plain, _ = train(communicator, model, compressor="none", scheme="none", steps=STEPS, loss=far_from_zero)
    assert same(ours, theirs) and not same(ours, plain)


def check(communicator: Communicator) -> None:
    check_powersgd(communicator)
    check_half(communicator)


def test_powersgd_and_half_precision_are_those_of_torchs_hooks() -> None:
    on_processes(2, check)
