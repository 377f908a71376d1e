"""One rank of one cell: meet, build, train, measure. `python -m benchmarks.training.rank` is what `launch` starts."""

import argparse
import gc
import os
import signal
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # imports take seconds, in which Ctrl-C ends a rank without a word, as SIGTERM does
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # they make a million objects, all in use: to look through them for garbage takes a fifth of that time

import torch
import torch.distributed as dist

from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json
from benchmarks.core.outcome import Outcome
from benchmarks.core.stop_policy import Limits
from benchmarks.training.build import build
from benchmarks.training.deadline import Stopped, Watch, catch_signals
from benchmarks.training.measure.phases import PhaseClock
from benchmarks.training.measure.probe import Probe, look_before_cuda, make_meter
from benchmarks.training.measure.rank_facts import rank_facts
from benchmarks.training.measure.tracker import peak_resident_bytes
from benchmarks.training.place import (
    Place,
    choose_place,
    horovod_facts,
    join,
    meet,
    nodes_of,
    settle_arithmetic,
    shut_down,
)
from benchmarks.training.trainer import Diverged, Trainer
from resireduce.comm.base import Communicator
from resireduce.comm.horovod import HorovodCommunicator, import_horovod
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError, NonFiniteGradient


def run_rank(
    cell: Cell,
    communicator: Communicator,
    weights: Path | None,
    root: Path,
    probe: Probe | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Train under the probe, and return the outcome; a failure is one too, with what had been measured until then."""
    torch.set_num_threads(cell.threads)
    probe, watch = probe or Probe(), watch or Watch()
    settle_arithmetic(probe.meter.device)
    trainer: Trainer | None = None
    try:
        trainer = build(cell, communicator, weights, root, probe.meter.device, probe=probe, watch=watch)
        trainer.train()
        return replace(trainer.result(), resumed_at_steps=watch.resumed_at, earlier_seconds=watch.earlier_seconds)
    except Exception as error:
        if not isinstance(error, Stopped | ConfigError):
            traceback.print_exc()
        return outcome_of(error, trainer)


def outcome_of(error: Exception, trainer: Trainer | None = None) -> Outcome:
    """Return a failed rank's outcome: what, where, and what had been measured until then; without trainer, it built."""
    status, reason, failure = describe(error)
    failure |= {"phase": trainer.phase, "step": trainer.step} if trainer else {"phase": "building"}
    measured = trainer.partial_result() if trainer else {}
    return Outcome(status=status, reason=reason, failure=failure, peak_resident_bytes=peak_resident_bytes(), **measured)


OUT_OF_MEMORY = (
    "out of memory",  # CUDA outside torch's allocator, NCCL
    "can't allocate memory",  # torch's allocator of the CPU raises RuntimeError
    "cannot allocate memory",  # ENOMEM
    "_alloc_failed",  # cuBLAS, cuDNN
)
LOST_PEER = (
    "gloo",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "a rank did not come",
    "horovod has been shut down",  # by a rank that has ended
)


def describe(error: Exception) -> tuple[str, str, dict[str, Any]]:
    """Return status, reason in one line, and further facts."""
    text = " ".join((str(error).splitlines() or [""])[0].split())
    words = str(error).lower()
    if isinstance(error, Stopped):
        return "timeout", text, {"interrupted": True}
    if isinstance(error, ConfigError):  # such as too few data for a batch
        return "error", text, {}
    if isinstance(error, Diverged | NonFiniteGradient):
        return "diverged", text, {}
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in words for word in OUT_OF_MEMORY):
        return "oom", text or "out of memory", {}
    lost_peer = isinstance(error, dist.DistError | ConnectionError) or any(word in words for word in LOST_PEER)
    return "error", f"{type(error).__name__}: {text}", {"lost_peer": True} if lost_peer else {}


def connect(cell: Cell, folder: Path, place: Place) -> Communicator:
    """Join the other ranks, in an empty folder that all see; the environment says which rank this is."""
    if cell.backend == "local":
        return LocalCommunicator()
    if cell.backend == "horovod":
        if place.device.type == "cuda" and place.ranks_on_device > 1 and import_horovod().nccl_built():
            raise ConfigError(
                "backend: 'horovod' with NCCL needs a GPU for each rank; give backend torch, or fewer ranks"
            )
        join(folder, cell.world_size, nodes=nodes_of(cell))
        return HorovodCommunicator()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if place.process_group == "nccl":  # communicators use the current device
        torch.cuda.set_device(place.device)
    store = meet(folder, rank, world_size)
    dist.init_process_group(place.process_group, store=store, rank=rank, world_size=world_size)
    return TorchCommunicator()


def disconnect(cell: Cell) -> None:
    """Leave the other ranks, once none of them needs this one any more."""
    if cell.backend == "torch":
        dist.destroy_process_group()
    if cell.backend == "horovod":
        shut_down()


def main() -> None:
    """Run one rank: read the cell, and write its outcome to `--output`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rendezvous", type=Path, required=True, help="folder in which ranks find each other")
    parser.add_argument("--limits", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    gc.freeze()  # no later collection looks through what the imports have made
    gc.enable()
    watch = Watch(Limits.load(args.limits), signals=catch_signals())
    cell = Cell.from_dict(load_json(args.cell))
    try:
        place = choose_place()
        before = look_before_cuda(place)
        communicator = connect(cell, args.rendezvous.resolve(), place)
    except Exception as error:
        if not isinstance(error, ConfigError | ConnectionError):
            traceback.print_exc()
        outcome_of(error).save(args.output)
        return
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    probe = Probe(make_meter(place, before), PhaseClock(place.device))
    outcome = run_rank(cell, communicator, args.weights, args.data, probe, watch)
    group = place.process_group if cell.backend == "torch" else None
    job = horovod_facts() if cell.backend == "horovod" else None
    facts = {**rank_facts(place.device, group, before.driver), "backend": cell.backend, "horovod": job}
    replace(outcome, facts=facts).save(args.output)
    if outcome.status == "ok":
        disconnect(cell)
    gc.freeze()  # nor does the interpreter's end, half a second long otherwise


if __name__ == "__main__":
    main()
