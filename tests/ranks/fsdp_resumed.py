"""Training under FSDP2 that saves everything by torch.distributed.checkpoint after each step, and is killed by its
test."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import resireduce
from resireduce.comm.base import Communicator
from tests.ranks.fsdp import compressed, mesh_of
from tests.worlds import OPTIMIZERS, loss_of

STEPS = 8


def train(folder: Path, options: dict[str, object], communicator: Communicator) -> None:
    """One of four ranks, two replicas of two shards; goes on from the last step that `folder` has whole."""
    model, hook = compressed(mesh_of(2, 2), **options)
    optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
    done = int((folder / "last").read_text()) if (folder / "last").exists() else 0
    if done:
        load(folder / str(done), model, optimizer, hook)
    for step in range(done, STEPS):
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(1000 * communicator.rank + step)).backward()
        optimizer.step()
        save(folder, step + 1, model, optimizer, hook)


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    hook: resireduce.ShardedCompressionHook,
) -> None:
    """All ranks have written theirs before rank 0 names the step that can be gone on from."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer, "residuals": hook}, checkpoint_id=folder / str(step))
    if dist.get_rank() == 0:
        (folder / "new").write_text(str(step))
        os.replace(folder / "new", folder / "last")


def load(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, hook: resireduce.ShardedCompressionHook
) -> None:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer, "residuals": hook}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)


def read(path: Path) -> dict[str, Tensor]:
    """Everything that is saved at `path`, parameters, momentum and residuals of all ranks, by one name each."""
    return {name: tensor for name, tensor in flat("", whole(path)).items() if isinstance(tensor, Tensor)}


def whole(path: Path, reader: int = 0) -> dict[str, object]:
    """What is saved at `path`, as one process reads it, one of several perhaps."""
    file = path.with_suffix(f".{reader}.pt")
    dcp_to_torch_save(path, file)
    state: dict[str, object] = torch.load(file, weights_only=True)
    return state


def flat(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    return {key: one for inner, held in value.items() for key, one in flat(f"{name}/{inner}", held).items()}
