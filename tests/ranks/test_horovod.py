"""Collectives and compressed training over Horovod with Gloo, on two processes and on two nodes of two."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import resireduce
from benchmarks.training.place import join, shut_down
from resireduce.comm.base import Communicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError
from tests.processes import Checks, on_processes
from tests.ranks import test_gloo
from tests.worlds import OPTIMIZERS, Net, same, seeded, train

NEEDED = pytest.mark.skipif(
    find_spec("horovod") is None and shutil.which("g++") is None,
    reason="Horovod is not installed, and cannot be built here: there is no g++",
)
NODES = [[0, 1], [2, 3]]


def on_horovod(world_size: int, checks: Sequence[Checks], nodes: Sequence[Sequence[int]] | str = "flat") -> None:
    """Run each of `checks` in `world_size` processes that are a Horovod job, and a process group beside it."""
    with tempfile.TemporaryDirectory() as folder:
        on_processes(world_size, partial(_joined, Path(folder), checks, nodes))


def _joined(folder: Path, checks: Sequence[Checks], nodes: Sequence[Sequence[int]] | str, group: Communicator) -> None:
    from resireduce.comm.horovod import HorovodCommunicator

    rank, size = str(group.rank), str(group.world_size)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    join(folder, group.world_size, nodes=nodes)
    for check in checks:
        check(HorovodCommunicator())
    dist.barrier()  # Horovod shuts down on all ranks as soon as one leaves
    shut_down()


def loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    """Return the mean square of the model's outputs for a random batch in its own precision."""
    x = torch.randn(6, 600, generator=generator).to(next(model.parameters()).dtype)
    return model(x).float().square().mean()


def check_half_precision_is_as_over_torch(communicator: Communicator) -> None:
    """A model in bfloat16, which Horovod does not know, bit for bit; test_walk has all others."""
    start, options = seeded(Net).to(torch.bfloat16), {"scheme": "baseline", "steps": 3, "loss": loss}
    first, _ = train(communicator, start, **options)  # type: ignore[arg-type]
    second, _ = train(TorchCommunicator(), start, **options)  # type: ignore[arg-type]
    assert same(first, second) and not same(first, start)


def check_merged_messages(communicator: Communicator) -> None:
    """Whatever travels together, parameters are the same, of gathers of equal sizes and of others."""
    start = seeded(lambda: Net(blocks=1))
    for compressor in ("topk", "threshold", "block8-two-phase"):
        options = {"scheme": "w+2d", "compressor": compressor, "steps": 2, "loss": loss}
        alone, _ = train(communicator, start, merge="none", **options)  # type: ignore[arg-type]
        together, _ = train(communicator, start, merge="one", **options)  # type: ignore[arg-type]
        assert same(alone, together) and not same(together, start)


def check_an_optimizer_that_averages_too(communicator: Communicator) -> None:
    """Horovod's DistributedOptimizer is refused: its hooks would average gradients while they are compressed."""
    import horovod.torch as hvd

    model = seeded(Net)
    theirs = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    with pytest.raises(ConfigError, match=r"optimizer: horovod\.torch\.DistributedOptimizer is not .*leave it out"):
        resireduce.distribute(model, theirs, backend="horovod")


OF_TWO: tuple[Checks, ...] = (
    test_gloo.check_ragged,
    test_gloo.check_exchange,
    test_gloo.check_start,
    test_gloo.check_optimizer_of_rank_0,
    check_half_precision_is_as_over_torch,
    check_merged_messages,
    check_an_optimizer_that_averages_too,
)


def check_that_nodes_are_as_over_torch(communicator: Communicator) -> None:
    """Bit for bit: of two ranks a level nothing is summed in another order. Kept with unequal payloads, and streamed
    in bfloat16, which Horovod does not know."""
    for dtype, compressor, gradients in ((torch.float32, "threshold", "kept"), (torch.bfloat16, "topk", "streamed")):
        start = seeded(lambda: Net(blocks=1)).to(dtype)
        options = {"compressor": compressor, "gradients": gradients, "steps": 2, "hierarchy": NODES, "loss": loss}
        first, _ = train(communicator, start, **options)  # type: ignore[arg-type]
        second, _ = train(TorchCommunicator(), start, **options)  # type: ignore[arg-type]
        assert same(first, second) and not same(first, start), (dtype, compressor)


def check_that_process_sets_are_asked_for(communicator: Communicator) -> None:
    """Nodes are given to distribute() alone: Horovod was started without them."""
    asked = r"init\(process_sets=\[hvd\.ProcessSet\(\[0, 3\]\), hvd\.ProcessSet\(\[1, 2\]"
    with pytest.raises(ConfigError, match=asked):
        train(communicator, seeded(Net), hierarchy=[[0, 3], [1, 2]])


OF_NODES: tuple[Checks, ...] = (
    check_that_nodes_are_as_over_torch,
    check_that_process_sets_are_asked_for,
)


@NEEDED
def test_two_processes() -> None:
    on_horovod(2, OF_TWO)


@NEEDED
def test_two_nodes_of_two_ranks() -> None:
    on_horovod(4, OF_NODES, NODES)


@NEEDED
def test_horovod_that_was_not_started_says_so_itself() -> None:
    model = seeded(Net)
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)"):
        resireduce.distribute(model, OPTIMIZERS["sgd"](list(model.parameters())), backend="horovod")
