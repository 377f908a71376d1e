"""One rank of one cell: build, train, measure. `python -m benchmarks.train` is what `launch` starts."""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.build import build
from benchmarks.cell import Cell
from benchmarks.files import load_json, save_json
from benchmarks.trainer import Diverged
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError, NonFiniteGradient


def run_rank(cell: Cell, communicator: Communicator, weights: Path | None, root: Path) -> dict[str, Any]:
    """Train and measure; divergence and lack of memory are results too; so is what the data cannot give."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // cell.world_size))
    torch.use_deterministic_algorithms(True)
    try:
        trainer = build(cell, communicator, weights, root)
        trainer.train()
        return {"status": "ok", "reason": None, **trainer.result()}
    except ConfigError as error:
        return {"status": "error", "reason": str(error)}
    except (Diverged, NonFiniteGradient) as error:
        return {"status": "diverged", "reason": str(error)}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {"status": "oom", "reason": str(error).splitlines()[0] if str(error) else "out of memory"}


def connect(cell: Cell, rendezvous: Path) -> Communicator:
    """Join the other ranks; the environment says which rank this is."""
    if cell.backend == "local":
        return LocalCommunicator()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    return TorchCommunicator()


def main() -> None:
    """One rank: reads the cell, leaves its outcome in `--output`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rendezvous", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    cell = Cell.from_dict(load_json(args.cell))
    communicator = connect(cell, args.rendezvous.resolve())
    outcome = run_rank(cell, communicator, args.weights, args.data)
    save_json(outcome, args.output)
    if cell.backend == "torch" and outcome["status"] == "ok":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
