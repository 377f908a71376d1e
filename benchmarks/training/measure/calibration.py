"""`python -m benchmarks measure allocation`: a known allocation, read at every rung of the ladder."""

import argparse
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import resireduce
from benchmarks.core.checks import allow, integer
from benchmarks.core.devices import DEVICE_VARIABLE, DEVICES
from benchmarks.core.files import save_json, writable
from benchmarks.core.rank_memory import Rung
from benchmarks.training.failures import describe
from benchmarks.training.measure.meter import Meter, rungs_of
from benchmarks.training.measure.probe import look_before_cuda, make_meter
from benchmarks.training.measure.tracker import reset_peak_resident
from benchmarks.training.place import choose_place
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError, choose
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
    try:
        rows = measure_known(mebibytes << 20)
    except RuntimeError as error:
        if describe(error)[0] != "oom":
            raise
        raise ConfigError(f"mebibytes: {mebibytes} is more than there is memory for; give a smaller one") from None
    if args.output is not None:
        save_json(rows, args.output)
    print("\n".join(table(rows)))
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
    meter = make_meter(place, before_cuda)
    levels = _nvml_levels(meter)
    meter.start()
    optimizer = _train_nothing(place.device, nbytes)
    # On a GPU, allocate as much host memory too, for the rungs that measure that.
    on_host = torch.ones(nbytes, dtype=torch.uint8) if place.device.type != "cpu" else None
    meter.at_boundary(held_tensors(optimizer))
    meter.stop()
    meter.without_gradients()
    del on_host
    optimizer.close()
    return [_row(rung, nbytes, levels) for rung in rungs_of(meter)]


def _train_nothing(device: torch.device, nbytes: int) -> DistributedOptimizer:
    """Return the optimizer of a model of one parameter, of which every byte has been touched."""
    model = nn.Module()
    model.register_parameter("known", nn.Parameter(torch.ones(nbytes >> 20, 512, 512, device=device)))
    optimizer = torch.optim.SGD(model.parameters())
    return resireduce.distribute(model, optimizer, scheme="none", compressor="none", backend="local", gradients="kept")


def _nvml_levels(meter: Meter) -> dict[str, int]:
    """Return NVML's levels just before, by rung; the rungs' own baseline is older: the idle device."""
    if isinstance(meter.nvml, str):
        return {}
    now = meter.nvml.read()
    idle = (meter.idle.used_bytes if meter.idle else None) or 0
    device = now.device_bytes or 0
    return {
        "nvml_device": device,
        "nvml_process": max(0, device - idle) if now.process_bytes is None else now.process_bytes,
    }


def _row(rung: Rung, expected_bytes: int, levels: dict[str, int]) -> dict[str, Any]:
    level = levels.get(rung.name, rung.baseline_bytes or 0)
    measured = None if rung.bytes is None else rung.bytes - level
    row = {"rung": rung.name, "expected_bytes": expected_bytes, "measured_bytes": measured, "reason": rung.reason}
    return row | {"flags": rung.flags, "error": None if measured is None else measured / expected_bytes - 1}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines for the screen."""
    lines = [f"{'rung':<28}{'expected MiB':>13}{'measured MiB':>13}  error"]
    for row in rows:
        expected = f"{row['rung']:<28}{row['expected_bytes'] / 2**20:>13.2f}"
        if row["measured_bytes"] is None:
            lines.append(f"{expected}{'-':>13}  {row['reason']}")
        else:
            flags = f"  ({', '.join(row['flags'])})" if row["flags"] else ""
            lines.append(f"{expected}{row['measured_bytes'] / 2**20:>13.2f}  {row['error']:+.2%}{flags}")
    return lines
