"""Under FSDP2: killed at any time, it goes on bit for bit; on another mesh residuals are shared out, or refused."""

import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from tests.processes import on_processes, start
from tests.ranks import fsdp_resumed
from tests.ranks.fsdp import compressed, mesh_of, train

OPTIONS: dict[str, object] = {"scheme": "w", "compressor": "dgc"}
"""Compression draws a sample, and residuals have several kinds."""


def train_both(killed: Path, undisturbed: Path, communicator: Communicator) -> None:
    for folder in (killed, undisturbed):
        fsdp_resumed.train(folder, OPTIONS, communicator)


def test_killed_it_goes_on_bit_for_bit_and_on_other_meshes_not_silently(tmp_path: Path) -> None:
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    for folder in (killed, undisturbed):
        folder.mkdir()
    ranks = start(4, str(tmp_path), partial(fsdp_resumed.train, killed, OPTIONS))
    while not (killed / "3" / ".metadata").exists() and ranks.processes[0].is_alive():
        time.sleep(0.001)
    for process in ranks.processes:
        process.kill()
    for process in ranks.processes:
        process.join()
    assert [process.exitcode for process in ranks.processes] == [-9] * 4, "they were to be killed while they ran"
    assert 2 <= int((killed / "last").read_text()) < fsdp_resumed.STEPS
    on_processes(4, partial(train_both, killed, undisturbed))
    found, expected = (fsdp_resumed.read(folder / str(fsdp_resumed.STEPS)) for folder in (killed, undisturbed))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    places = {name.split("/")[2] for name in found if name.startswith("/residuals")}
    assert places == {f"replica {i}, shard {j}" for i in (0, 1) for j in (0, 1)}
    on_processes(2, partial(check_other_meshes, killed / str(fsdp_resumed.STEPS)))


def check_fewer_replicas(states: list[dict[str, Tensor]], communicator: Communicator) -> None:
    """One replica is left, of as many shards: what would still have moved the model stays what it was."""
    model, hook = compressed(mesh_of(1, 2), **OPTIONS)
    own = {"alone": states[dist.get_rank()], "other": states[1 - dist.get_rank()]}
    with pytest.raises(
        ConfigError, match=r"it is that of rank 0 of 2, shard \d of 2, this is rank 0 of 1, sh.*redistribute"
    ):
        hook.load_residual_state_dict(own["alone"])
    with pytest.raises(
        ConfigError, match=rf", this is rank 0 of 1, shard {dist.get_rank()} of 2; load this rank's own"
    ):
        hook.load_residual_state_dict(own["other"])
    for act in (hook.load_residual_state_dict, hook.load_state_dict):
        with pytest.raises(ConfigError, match="does not fit this model"):
            act({})
    with pytest.raises(ConfigError, match="does not fit this model"):
        hook.load_state_dict({"replica 7, shard 0": own["alone"]})
    resireduce.redistribute(hook, states)
    held, pair = hook.residual_state_dict(), states[dist.get_rank() :: 2]
    names = [name for name in held if name.startswith(("full.", "weighted."))]
    assert len(names) == 3 and all(held[name].any() for name in names)
    for name in names:
        torch.testing.assert_close(held[name], (pair[0][name] + pair[1][name]) / 2)
    group = next(name for name in held if name.startswith("members."))
    with pytest.raises(ConfigError, match=r"'members\..*' is another one"):
        hook.load_residual_state_dict({**held, group: held[group] + 1})
    hook.load_residual_state_dict(held)
    train(model, steps=1)
    assert hook.steps == fsdp_resumed.STEPS + 1


def check_fewer_shards(states: list[dict[str, Tensor]], communicator: Communicator) -> None:
    _, hook = compressed(mesh_of(2, 1), **OPTIONS)
    with pytest.raises(ConfigError, match=r"of rank 0 of 2, shard 0 of 2, this is rank \d of 2, shard 0 of 1"):
        hook.load_residual_state_dict(states[0])
    with pytest.raises(ConfigError, match=r"those of no rank .* as many shards: slices are not cut anew"):
        resireduce.redistribute(hook, states)


def check_other_meshes(saved: Path, communicator: Communicator) -> None:
    residuals = fsdp_resumed.whole(saved, communicator.rank)["residuals"]
    states = [residuals[f"replica {i}, shard {j}"] for i in (0, 1) for j in (0, 1)]  # type: ignore[index]
    check_fewer_replicas(states, communicator)
    check_fewer_shards(states, communicator)
