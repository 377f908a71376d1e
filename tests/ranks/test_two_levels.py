"""Two levels of ranks between processes, over gloo: 2 nodes x 2 ranks."""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.nodes import find_nodes
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError
from tests.nodes import by_hand, given_gradients
from tests.processes import all_equal, check_collectives_between, on_processes
from tests.worlds import Net, distributed, residuals, same, seeded, train, train_world


def halves(communicator: Communicator) -> list[list[int]]:
    """Two nodes."""
    ranks = [*range(communicator.world_size)]
    return [ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]]


def check_the_definition(communicator: Communicator) -> None:
    """What was sent and what is kept, after uneven slices, at a density and at 1."""
    nodes = halves(communicator)
    gradients = np.random.default_rng(2).normal(size=(3, communicator.world_size, 107, 100))
    for density in (0.01, 1.0):
        moved, left, _ = by_hand(gradients, nodes, density)
        found, optimizer = given_gradients(communicator, gradients, density=density, hierarchy=nodes)
        np.testing.assert_allclose(found.numpy(), moved, rtol=1e-12, atol=1e-12)
        place, own = communicator.rank % len(nodes[0]), communicator.rank // len(nodes[0])
        mine = np.array_split(left[own], len(nodes[0]))[place]
        held = residuals(optimizer)["full.weight"]
        np.testing.assert_allclose(held.numpy(), mine, rtol=1e-12, atol=1e-12)


def check_lifetimes(communicator: Communicator) -> None:
    """Streamed = kept, ranks agree, and gloo = the local world (of two ranks a level: more are summed otherwise)."""
    start, nodes = seeded(Net), halves(communicator)
    for scheme, compressor in (("w+2d", "topk"), ("baseline", "threshold"), ("baseline", "qsgd"), ("none", "none")):
        options = {"scheme": scheme, "compressor": compressor, "steps": 3, "hierarchy": nodes}
        kept, _ = train(communicator, start, gradients="kept", **options)  # type: ignore[arg-type]
        streamed, _ = train(communicator, start, gradients="streamed", **options)  # type: ignore[arg-type]
        assert same(kept, streamed) and all_equal(streamed) and not same(streamed, start)
        assert same(train_world(4, start, gradients="streamed", **options)[0][0], streamed)


def check_half_precision(communicator: Communicator) -> None:
    """Gradients in bfloat16 are summed in bfloat16, and ranks stay alike."""

    def loss(model: nn.Module, generator: torch.Generator) -> torch.Tensor:
        return model(torch.randn(6, 600, generator=generator).bfloat16()).float().square().mean()

    start, options = seeded(Net).bfloat16(), {"scheme": "baseline", "steps": 3, "loss": loss}
    model, _ = train(communicator, start, hierarchy=halves(communicator), **options)  # type: ignore[arg-type]
    assert all_equal(model) and not same(model, start)


def check_staged(communicator: Communicator) -> None:
    """Through copies, as a GPU's tensors travel over gloo: the same training, bit for bit."""
    start, options = seeded(Net), {"scheme": "w+2d", "steps": 2, "hierarchy": halves(communicator)}
    direct, _ = train(communicator, start, **options)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchCommunicator, "_stages", lambda self, tensor: True)
        copied, _ = train(TorchCommunicator(), start, **options)  # type: ignore[arg-type]
    assert same(direct, copied)


def check_collectives_of_the_user(communicator: Communicator) -> None:
    """With layers that only one rank of each node uses."""
    model = seeded(lambda: nn.Sequential(*[nn.Linear(120, 120) for _ in range(4)]))
    optimizer = distributed(model, lr=0.01, backend=communicator, hierarchy=halves(communicator))
    check_collectives_between(optimizer, model, model if communicator.rank % 2 else [model[0], model[3]])


def check_how_nodes_are_given(communicator: Communicator) -> None:
    """Lists and Slurm's numbers mean the same."""
    lists = halves(communicator)
    wanted = tuple(map(tuple, lists))
    os.environ |= {"SLURM_PROCID": str(communicator.rank), "SLURM_STEP_NUM_TASKS": str(communicator.world_size)}
    os.environ |= {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NODEID": str(communicator.rank // len(lists[0]))}
    for given in (lists, "node"):
        assert find_nodes(communicator, given) == wanted


def check_a_hierarchy_that_one_rank_was_given_alone(communicator: Communicator) -> None:
    with pytest.raises(ConfigError, match=r"hierarchy: .* on rank|differ between ranks"):
        train(communicator, seeded(Net), hierarchy="flat" if communicator.rank else halves(communicator))


def check_that_groups_are_used_again(communicator: Communicator) -> None:
    """What close() gives back the next optimizer takes; two in use share nothing, whatever their steps interleave."""

    def made(seed: int) -> tuple[nn.Module, resireduce.DistributedOptimizer]:
        model = seeded(lambda: nn.Linear(120, 120), seed)
        wrapped = torch.optim.SGD(model.parameters(), 0.1)
        return model, resireduce.distribute(model, wrapped, "baseline", hierarchy=halves(communicator))

    before = len(dist.distributed_c10d._world.pg_map)
    (one, first), (other, second) = made(0), made(1)
    held = len(dist.distributed_c10d._world.pg_map)
    assert held > before
    for model in (one, other):
        (model.weight.square().sum() * (communicator.rank + 1)).backward()  # type: ignore[operator, union-attr]
    for optimizer in (second, first):
        optimizer.step()
    first.close()
    _, third = made(2)
    assert len(dist.distributed_c10d._world.pg_map) == held
    third.close()


CHECKS: tuple[Callable[[Communicator], None], ...] = (
    check_the_definition,
    check_lifetimes,
    check_half_precision,
    check_staged,
    check_collectives_of_the_user,
    check_a_hierarchy_that_one_rank_was_given_alone,
    check_that_groups_are_used_again,
    check_how_nodes_are_given,
)


def check_all(communicator: Communicator) -> None:
    for check in CHECKS:
        check(communicator)


def test_two_nodes_of_two_ranks() -> None:
    on_processes(4, check_all)
