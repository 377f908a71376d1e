"""Under FSDP2: begun again it goes on bit for bit; on another mesh residuals are shared out, or refused."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from tests.processes import on_processes
from tests.ranks.fsdp import compressed, mesh_of, same_values, train
from tests.worlds import OPTIMIZERS, loss_of

STEPS, STOP = 6, 3
OPTIONS: dict[str, object] = {"scheme": "w", "compressor": "dgc"}
"""Compression draws a sample, and residuals have several kinds."""


def go_on(mesh: DeviceMesh, saved: Path, begin: int, end: int) -> tuple[nn.Module, resireduce.ShardedCompressionHook]:
    """Take these steps with new objects, from what is `saved` unless they are the first; save where they stop."""
    model, hook = compressed(mesh, **OPTIONS)
    optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
    if begin:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.load({"model": of_model, "optimizer": of_optimizer, "residuals": hook}, checkpoint_id=saved)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(1000 * dist.get_rank() + step)).backward()
        optimizer.step()
    if end == STOP:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer, "residuals": hook}, checkpoint_id=saved)
    return model, hook


def check_a_stop(saved: Path, communicator: Communicator) -> None:
    mesh = mesh_of(2, 2)
    whole, first = go_on(mesh, saved, 0, STEPS)
    go_on(mesh, saved, 0, STOP)
    resumed, second = go_on(mesh, saved, STOP, STEPS)
    assert same_values(whole, resumed) and second.steps == STEPS
    expected, found = first.residual_state_dict(), second.residual_state_dict()
    assert expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


def test_stopped_it_goes_on_bit_for_bit_and_on_other_meshes_not_silently(tmp_path: Path) -> None:
    on_processes(4, partial(check_a_stop, tmp_path / "saved"))
    on_processes(2, partial(check_other_meshes, tmp_path))


def check_fewer_replicas(states: list[dict[str, Tensor]], communicator: Communicator) -> None:
    """One replica is left, of as many shards: what would still have moved the model stays what it was."""
    model, hook = compressed(mesh_of(1, 2), **OPTIONS)
    own = {"alone": states[dist.get_rank()], "other": states[1 - dist.get_rank()]}
    with pytest.raises(ConfigError, match=r"it is that of rank 0 of 2, this is rank 0 of 1; .*redistribute"):
        hook.load_residual_state_dict(own["alone"])
    with pytest.raises(ConfigError, match=rf"none is that of shard {dist.get_rank()}, which this rank holds"):
        hook.load_residual_state_dict(own["other"])
    with pytest.raises(ConfigError, match=r"none of a sharded model"):
        hook.load_residual_state_dict({})
    with pytest.raises(ConfigError, match=r"it has nothing of replica 0, shard \d"):
        hook.load_state_dict({"replica 7, shard 0": own["alone"]})
    resireduce.redistribute(hook, states)
    held, pair = hook.residual_state_dict(), states[dist.get_rank() :: 2]
    names = [name for name in held if name.startswith(("full.", "weighted."))]
    assert len(names) == 3 and all(held[name].any() for name in names)
    for name in names:
        torch.testing.assert_close(held[name], (pair[0][name] + pair[1][name]) / 2)
    group = next(name for name in held if name.startswith("members."))
    with pytest.raises(ConfigError, match=r"the group of '.*' had other members"):
        hook.load_residual_state_dict({**held, group: held[group] + 1})
    hook.load_residual_state_dict(held)
    train(model, steps=1)
    assert hook.steps == STOP + 1


def check_fewer_shards(states: list[dict[str, Tensor]], communicator: Communicator) -> None:
    _, hook = compressed(mesh_of(2, 1), **OPTIONS)
    for act in (partial(hook.load_residual_state_dict, states[0]), partial(resireduce.redistribute, hook, states)):
        with pytest.raises(ConfigError, match=r"it is of 2 shards, and this model has 1; .* not cut anew"):
            act()


def check_other_meshes(folder: Path, communicator: Communicator) -> None:
    file = folder / f"read by {communicator.rank}.pt"
    dcp_to_torch_save(folder / "saved", file)
    residuals = torch.load(file, weights_only=True)["residuals"]
    states = [residuals[f"replica {i}, shard {j}"] for i in (0, 1) for j in (0, 1)]
    check_fewer_replicas(states, communicator)
    check_fewer_shards(states, communicator)
