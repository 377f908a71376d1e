"""Process groups: given, made, shared by none, and used again."""

import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError
from tests.processes import on_processes
from tests.worlds import Net, loss_of, same, seeded, take_steps, train_world


def small(seed: int = 0) -> nn.Module:
    return seeded(lambda: nn.Linear(120, 120), seed)


def distributed(model: nn.Module, **options: object) -> DistributedOptimizer:
    return resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "baseline", **options)  # type: ignore[arg-type]


def groups() -> int:
    """How many process groups there are."""
    return len(dist.distributed_c10d._world.pg_map)


def check_that_half_the_ranks_train_together(communicator: Communicator) -> None:
    """Two groups of two train beside each other, each as two ranks alone would."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[communicator.rank // 2]
    model, optimizer = seeded(Net), None
    optimizer = resireduce.distribute(
        model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), density=0.05, group=mine
    )
    state = optimizer.residual_state_dict()
    assert (int(state["rank"]), int(state["world_size"])) == (communicator.rank % 2, 2)
    generator = torch.Generator().manual_seed(communicator.rank % 2)
    take_steps(optimizer, lambda: loss_of(model, generator), 3)
    assert same(model, train_world(2, seeded(Net), steps=3)[0][0])
    with pytest.raises(ConfigError, match=r"group: .* is not allowed; give a ProcessGroup that this rank is in"):
        distributed(small(), group=halves[1 - communicator.rank // 2])


def check_that_groups_are_used_again(communicator: Communicator) -> None:
    """A closed optimizer's group is the next one's; two in use have two; one that a rank still holds is not taken."""
    before = groups()
    first, second = distributed(small()), distributed(small(1))
    assert groups() == before + 2
    first.close()
    third = distributed(small(2))
    assert groups() == before + 2
    third.close()
    kept = distributed(small(3))
    if communicator.rank == 0:
        kept.close()
    fourth = distributed(small(4))
    assert groups() == before + 3
    for optimizer in (kept, second, fourth):
        optimizer.close()
    dropped = distributed(small(5))
    small(5)(torch.ones(2, 120)).sum().backward()
    del dropped
    gc.collect()
    distributed(small(6)).close()
    assert groups() == before + 3


def test_a_program_that_starts_torch_distributed_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{name}", rank=0, world_size=1)
        with distributed(small()) as optimizer:
            optimizer.step()
        dist.destroy_process_group()


def test_two_processes() -> None:
    on_processes(2, check_that_groups_are_used_again)


def test_four_processes() -> None:
    on_processes(4, check_that_half_the_ranks_train_together)
