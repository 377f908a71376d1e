"""One rank of a measurement: `python -m benchmarks.training.measure_rank NAME FOLDER`, which `launching` starts.

It reads the folder's `settings.json`, and leaves what it has found, as plain values, in `rank` and its number, `.json`.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.core.files import load_json, save_json
from resireduce.errors import ConfigError
from resireduce.scheme import load

MEASUREMENTS = {
    "beside": "benchmarks.training.beside.beside_rank:measured",
    "micro": "benchmarks.training.compress_speed:measured",
    "pace": "benchmarks.training.pace_rank:measured",
}
"""What is measured, by name: a function of the settings and the folder."""


def now(like: Tensor) -> float:
    """Return the time in seconds once the device of `like` has finished all its work."""
    if like.device.type == "cuda":
        torch.cuda.synchronize(like.device)
    return time.perf_counter()


def in_turn(cases: Sequence[Callable[[int], float]], rounds: Iterable[int], warm_up: int = 0) -> list[list[float]]:
    """Return the seconds that each case takes in each round, the first `warm_up` rounds left out.

    A case is given the number of the round, and says how long it took. In every second round they run in reverse order,
    so that other work on the machine, and what one leaves to the next, affects all alike.
    """
    seconds: list[list[float]] = [[] for _ in cases]
    for number in rounds:
        order = range(len(cases))
        for which in order if number % 2 else reversed(order):
            took = cases[which](number)
            if number >= warm_up:
                seconds[which].append(took)
    return seconds


def join(folder: Path, process_group: str = "gloo") -> None:
    """Have the ranks, which RANK and WORLD_SIZE number, meet at a file of the folder."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(process_group, init_method=f"file://{folder}/store", rank=rank, world_size=size)


def meet() -> None:
    """Wait for this rank's device, and for the other ranks."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


def main() -> None:
    """Measure, and end the process with one line for settings that cannot be used."""
    name, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ.get("RANK", "0"))
    try:
        found: Any = load(MEASUREMENTS[name])(load_json(folder / "settings.json"), folder)
    except ConfigError as error:
        sys.exit(f"error: {error}" if os.environ.get("WORLD_SIZE", "1") == "1" else f"rank {rank}: {error}")
    save_json(found, folder / f"rank{rank}.json")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
