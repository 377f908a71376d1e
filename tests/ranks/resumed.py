"""Training that saves a checkpoint after every step, and goes on from the last one; killed at any time by its test."""

import copy
import os
import sys
from pathlib import Path

import torch

import resireduce
from resireduce.comm.base import Communicator
from tests.threads import LocalWorld
from tests.worlds import OPTIMIZERS, Net, loss_of, seeded, sgd_for

STEPS = 16
WORLD_SIZE = 2


def train(folder: Path, options: dict[str, object]) -> None:
    """Two ranks; each saves its own file, rank 0 the model and the optimizer beside."""
    start = seeded(Net)
    LocalWorld(WORLD_SIZE).run(lambda communicator: _rank(communicator, copy.deepcopy(start), folder, options))


def _rank(communicator: Communicator, model: torch.nn.Module, folder: Path, options: dict[str, object]) -> None:
    wrapped = OPTIMIZERS[sgd_for(options)](list(model.parameters()))
    optimizer = resireduce.distribute(model, wrapped, backend=communicator, density=0.05, **options)  # type: ignore[arg-type]
    done = _load(folder, communicator.rank, model, optimizer)
    for step in range(done, STEPS):
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(1000 * communicator.rank + step)).backward()
        optimizer.step()
        _save(folder, communicator, step + 1, model, optimizer)


def _save(
    folder: Path,
    communicator: Communicator,
    step: int,
    model: torch.nn.Module,
    optimizer: resireduce.DistributedOptimizer,
) -> None:
    """Every rank's file is there before rank 0 names the step that can be gone on from."""
    state = {"residuals": optimizer.residual_state_dict()}
    if communicator.rank == 0:
        state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"{step}.{communicator.rank}.pt")
    communicator.all_reduce(torch.zeros(1), f"saved {step}").wait()
    if communicator.rank == 0:
        (folder / "new").write_text(str(step))
        os.replace(folder / "new", folder / "last")


def _load(folder: Path, rank: int, model: torch.nn.Module, optimizer: resireduce.DistributedOptimizer) -> int:
    if not (folder / "last").exists():
        return 0
    step = int((folder / "last").read_text())
    of_all = torch.load(folder / f"{step}.0.pt", weights_only=True)
    model.load_state_dict(of_all["model"])
    optimizer.load_state_dict(of_all["optimizer"])
    optimizer.load_residual_state_dict(torch.load(folder / f"{step}.{rank}.pt", weights_only=True)["residuals"])
    return step


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """The model as it was after the last step."""
    return torch.load(folder / f"{STEPS}.0.pt", weights_only=True)["model"]


def main(folder: str, options: dict[str, object]) -> None:
    """One process, to be killed."""
    torch.set_num_threads(1)
    train(Path(folder), options)
    sys.exit(0)
