"""One rank of one cell: build, train, measure. `python -m benchmarks.training.rank` is what `launch` starts."""

import argparse
import os
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cell import Cell
from benchmarks.files import load_json, save_json
from benchmarks.measure.facts import rank_facts
from benchmarks.measure.probe import Probe
from benchmarks.measure.start import look_before_cuda, make_probe
from benchmarks.training.build import build
from benchmarks.training.checkpoint import Checkpoints
from benchmarks.training.deadline import Stopped, Watch, catch_signals
from benchmarks.training.devices import Place, choose_place, from_launcher, settle_arithmetic
from benchmarks.training.failures import outcome_of
from benchmarks.training.horovod import horovod_facts, join, needs_own_gpu, shut_down
from benchmarks.training.limits import Limits
from benchmarks.training.rendezvous import STORES, find_store
from benchmarks.training.trainer import Trainer
from resireduce.comm.base import Communicator
from resireduce.comm.horovod import HorovodCommunicator
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError


def run_rank(
    cell: Cell,
    communicator: Communicator,
    weights: Path | None,
    root: Path,
    probe: Probe | None = None,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train where the probe measures. How it ended is a result too: with what had been measured until then."""
    torch.set_num_threads(cell.threads)
    probe = probe or Probe()
    settle_arithmetic(probe.meter.device)
    trainer: Trainer | None = None
    try:
        trainer = build(cell, communicator, weights, root, probe.meter.device)
        trainer.probe = probe
        trainer.watch = watch or trainer.watch
        _find_checkpoints(trainer)
        trainer.train()
        return {"status": "ok", "reason": None, **trainer.result(), **trainer.watch.summary()}
    except Exception as error:
        if not isinstance(error, Stopped | ConfigError):
            traceback.print_exc()
        return outcome_of(error, trainer)


def _find_checkpoints(trainer: Trainer) -> None:
    limits = trainer.watch.limits
    if limits.folder is not None:
        content = {**limits.content, "data": trainer.task.data_hash()}
        checkpoints = Checkpoints(limits.folder, content, trainer.cell.name, trainer.communicator)
        trainer.watch.checkpoints = checkpoints


def connect(cell: Cell, folder: Path, place: Place, store: str = "file") -> Communicator:
    """Join the other ranks, through a store of that kind and an empty folder that all see; the environment says which
    rank this is."""
    if cell.backend == "local":
        return LocalCommunicator()
    if cell.backend == "horovod":
        join(folder, cell.world_size)
        return HorovodCommunicator()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if place.process_group == "nccl":  # a communicator uses the current device
        torch.cuda.set_device(place.device)
    meeting = find_store(store, folder, rank, world_size)
    dist.init_process_group(place.process_group, store=meeting, rank=rank, world_size=world_size)
    return TorchCommunicator()


def disconnect(cell: Cell) -> None:
    """Leave the other ranks, none of which needs this one any more."""
    if cell.backend == "torch":
        dist.destroy_process_group()
    if cell.backend == "horovod":
        shut_down()


def _facts(cell: Cell, place: Place, driver: str | None) -> dict[str, Any]:
    """What this rank ran on, and by what it reached the others."""
    group = place.process_group if cell.backend == "torch" else None
    job = horovod_facts() if cell.backend == "horovod" else None
    return {**rank_facts(place.device, group, driver), "backend": cell.backend, "horovod": job}


def main() -> None:
    """One rank: reads the cell, leaves its outcome in `--output`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--output", required=True, help="{rank} in it stands for the rank's number")
    parser.add_argument("--rendezvous", type=Path, required=True, help="folder in which ranks find each other")
    parser.add_argument("--store", choices=STORES, default="file", help="where those of torch.distributed meet")
    parser.add_argument("--limits", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    output = Path(args.output.replace("{rank}", str(from_launcher("RANK", 0))))
    watch = Watch(Limits.load(args.limits), signals=catch_signals())
    cell = Cell.from_dict(load_json(args.cell))
    try:
        place = choose_place(own_gpu=needs_own_gpu(cell.backend))
        before = look_before_cuda(place)
        communicator = connect(cell, args.rendezvous.resolve(), place, args.store)
    except (ConfigError, ConnectionError) as error:
        save_json(outcome_of(error, None), output)
        return
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    outcome = run_rank(cell, communicator, args.weights, args.data, make_probe(place, before), watch)
    outcome["facts"] = _facts(cell, place, before.driver)
    save_json(outcome, output)
    if outcome["status"] == "ok":
        disconnect(cell)


if __name__ == "__main__":
    main()
