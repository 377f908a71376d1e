"""`python -m benchmarks measure allocation`: a known allocation, read at every rung of the ladder."""

import argparse
import gc
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

import resireduce
from benchmarks.core.checks import allow, integer
from benchmarks.core.devices import DEVICE_VARIABLE, DEVICES, Idle
from benchmarks.core.files import save_json, writable
from benchmarks.training.measure.probe import look_before_cuda, make_meter
from benchmarks.training.measure.tracker import reset_peak_resident
from benchmarks.training.place import choose_place
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import choose
from resireduce.planning.memory import held_tensors

TOLERANCE = 0.01
SMALLEST, LARGEST = 64, 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    size = (
        "size of the allocation (default: %(default)s): even, since a GPU's memory comes in pieces of 2 MiB, and large "
        "enough for the small ones of 20 MiB not to matter"
    )
    parser.add_argument("--mebibytes", type=int, default=256, help=size)
    parser.add_argument("--device", help=f"cpu or cuda (default: {DEVICE_VARIABLE}, else a GPU where there is one)")
    parser.add_argument("--output", type=Path, help="JSON file, beside what is printed")


def main(args: argparse.Namespace) -> int:
    """Return 0 if every rung that this machine has is correct to within 1 %, else 1."""
    mebibytes = integer("mebibytes", args.mebibytes, SMALLEST, LARGEST)
    allow("mebibytes", mebibytes, mebibytes % 2 == 0, "an even number, which allocators do not round")
    if args.output is not None:
        writable("output", args.output)
    if args.device is not None:
        os.environ[DEVICE_VARIABLE] = choose("device", args.device, DEVICES)
    rows = measure_known(mebibytes << 20)
    if args.output is not None:
        save_json(rows, args.output)
    for row in rows:
        sizes = "" if row["error"] is None else f"{row['measured_bytes'] / 2**20:.2f} MiB  {row['error']:+.2%}"
        print(f"{row['rung']:<28}{sizes or row['reason']}  {', '.join(row['flags'])}".rstrip())
    return int(any(row["error"] is not None and abs(row["error"]) > TOLERANCE for row in rows))


def measure_known(nbytes: int) -> list[dict[str, Any]]:
    """Allocate `nbytes`, a whole number of mebibytes, as the one parameter of a model, and read all rungs.

    Returns for each rung what it had to show, what it showed beyond its level just before, and the relative error.
    """
    place = choose_place()
    before_cuda = look_before_cuda(place)
    _train_nothing(place.device, 16 << 20).close()  # so that what the first kernels load is already there
    gc.collect()  # hooks and optimizer refer to each other
    if place.device.type == "cuda":
        torch.cuda.empty_cache()
    reset_peak_resident()
    meter, held_before = make_meter(place, before_cuda), 0
    if not isinstance(meter.nvml, str):
        now = meter.nvml.read()
        meter.idle, held_before = Idle(now.device_bytes), now.process_bytes or 0
    meter.start()
    optimizer = _train_nothing(place.device, nbytes)
    # On a GPU, allocate as much host memory too, for the rungs that measure that.
    on_host = torch.ones(nbytes, dtype=torch.uint8) if place.device.type != "cpu" else None
    meter.at_boundary(held_tensors(optimizer))
    meter.stop()
    meter.without_gradients()
    del on_host
    optimizer.close()
    rows = []
    for rung in meter.rungs():
        level = held_before if rung.name == "nvml_process" else rung.baseline_bytes or 0
        measured = None if rung.bytes is None else rung.bytes - level
        row = {"rung": rung.name, "expected_bytes": nbytes, "measured_bytes": measured, "reason": rung.reason}
        rows.append(row | {"flags": rung.flags, "error": None if measured is None else measured / nbytes - 1})
    return rows


def _train_nothing(device: torch.device, nbytes: int) -> DistributedOptimizer:
    """Return the optimizer of a model of one parameter, of which every byte has been touched."""
    model = nn.Module()
    model.register_parameter("known", nn.Parameter(torch.ones(nbytes >> 20, 512, 512, device=device)))
    optimizer = torch.optim.SGD(model.parameters())
    return resireduce.distribute(model, optimizer, scheme="none", compressor="none", backend="local", gradients="kept")
