"""`python -m benchmarks measure allocation`: a known allocation, read at every rung of the ladder."""

import argparse
import gc
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Reading:
    """One rung's reading of the known allocation."""

    rung: str
    expected_bytes: int
    measured_bytes: int | None
    """The rung minus its level just before; None with a reason."""
    reason: str | None
    flags: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Relative error."""
        return None if self.measured_bytes is None else self.measured_bytes / self.expected_bytes - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    size = (
        "size of the allocation (default: %(default)s): even, since a GPU's memory comes in pieces of 2 MiB, and large "
        "enough for the small ones of 20 MiB not to matter"
    )
    parser.add_argument("--mebibytes", type=int, default=256, help=size)
    parser.add_argument("--device", help=f"cpu or cuda (default: {DEVICE_VARIABLE}, else a GPU where there is one)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
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
        readings = measure_known(mebibytes << 20)
    except RuntimeError as error:
        if describe(error)[0] != "oom":
            raise
        raise ConfigError(f"mebibytes: {mebibytes} is more than there is memory for; give a smaller one") from None
    values = [asdict(reading) | {"error": reading.error} for reading in readings]
    if args.output is not None:
        save_json(values, args.output)
    if args.json:
        print(json.dumps(values, indent=1))
    else:
        print("\n".join(table(readings)))
    return int(any(reading.error is not None and abs(reading.error) > TOLERANCE for reading in readings))


def measure_known(nbytes: int) -> list[Reading]:
    """Allocate `nbytes`, a whole number of mebibytes, as the one parameter of a model, and read all rungs."""
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
    return [_reading(rung, nbytes, levels) for rung in rungs_of(meter)]


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


def _reading(rung: Rung, expected_bytes: int, levels: dict[str, int]) -> Reading:
    level = levels.get(rung.name, rung.baseline_bytes or 0)
    measured = None if rung.bytes is None else rung.bytes - level
    return Reading(rung.name, expected_bytes, measured, rung.reason, rung.flags)


def table(readings: Sequence[Reading]) -> list[str]:
    """Return lines for the screen."""
    lines = [f"{'rung':<28}{'expected MiB':>13}{'measured MiB':>13}  error"]
    for reading in readings:
        expected = f"{reading.rung:<28}{reading.expected_bytes / 2**20:>13.2f}"
        if reading.measured_bytes is None:
            lines.append(f"{expected}{'-':>13}  {reading.reason}")
        else:
            flags = f"  ({', '.join(reading.flags)})" if reading.flags else ""
            lines.append(f"{expected}{reading.measured_bytes / 2**20:>13.2f}  {reading.error:+.2%}{flags}")
    return lines
