"""Times the compression of a gradient by each case in turn, and the averaging of all ranks' payloads, in one process.

`python -m benchmarks.training.compress_speed FOLDER` reads the folder's `settings.json` and writes `rows.json`;
`benchmarks.micro.micro_command` starts it.
"""

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.files import load_json, save_json
from benchmarks.training.compress_cases import COPY, NAIVE, Case, list_cases, now
from resireduce.compressors.topk import TopK
from resireduce.core.payload import Payload

WARM_UP_ROUNDS = 1


def main() -> None:
    """Time all cases at each size and density that the settings name, and report progress.

    Ends the process, and says why, if they name a GPU where there is none.
    """
    folder = Path(sys.argv[1])
    settings = load_json(folder / "settings.json")
    cases = chosen(settings["cases"])
    if settings["device"] == "cuda" and not torch.cuda.is_available():
        sys.exit("error: device: 'cuda' is not allowed without a CUDA device; give cpu, or leave it out")
    torch.set_num_threads(settings["threads"])
    device, rows, averages = torch.device(settings["device"]), list[dict[str, Any]](), list[dict[str, Any]]()
    for elements in settings["sizes"]:
        for density in settings["densities"]:
            shape = elements // settings["row"], settings["row"]
            rows += timed(cases, shape, density, settings["rounds"], device)
            averages += average_times(torch.zeros(shape, device=device), density, settings["rounds"])
            print(f"{elements:,} elements, density {density:g}: timed", flush=True)
    save_json({"rows": rows, "averages": averages}, folder / "rows.json")


def chosen(patterns: Sequence[str]) -> list[Case]:
    """Return the cases that `patterns` name, and those that all others are compared with.

    Ends the process with status 2, and says why, if there is none for one of them.
    """
    cases = list_cases()
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            names = "; ".join(case.name for case in cases)
            print(f"error: cases: {pattern!r} is not known; there are: {names}", file=sys.stderr)
            sys.exit(2)
    wanted = {*patterns, COPY, NAIVE}
    return [case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in wanted)]


def timed(
    cases: list[Case], shape: tuple[int, int], density: float, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return a row for each case: its seconds for one gradient in each round, in the order of rounds.

    In every second round the cases run in reverse order. Each step has gradients of its own, as in training; making
    them is not timed.
    """
    source = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    steps = [case.make(source, density) for case in cases]
    seconds: list[list[float]] = [[] for _ in cases]
    for number in range(WARM_UP_ROUNDS + rounds):
        order = range(len(cases))
        for which in order if number % 2 else reversed(order):
            gradients = [source.clone() for _ in range(cases[which].gradients)]
            started = now(source)
            steps[which](gradients, number)
            ended = now(source)
            if number >= WARM_UP_ROUNDS:
                seconds[which].append((ended - started) / cases[which].gradients)
    at = {"elements": source.numel(), "density": density}
    return [{"case": case.name, **at, "seconds": found} for case, found in zip(cases, seconds, strict=True)]


RANKS = (2, 8, 64)


def average_times(like: Tensor, density: float, rounds: int) -> list[dict[str, object]]:
    """Return a row for each number of ranks: the seconds of each of `rounds` rounds, for one gradient like `like`.

    All numbers are timed in turn. Payloads are top-k's, with positions spread over the gradient at random.
    """
    source = torch.Generator().manual_seed(0)
    payloads = [_payload(like, density, source) for _ in range(max(RANKS))]
    seconds: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
    compressor, average = TopK(density), torch.zeros_like(like)
    for number in range(1 + rounds):  # the first round is warm-up
        for ranks in RANKS if number % 2 else RANKS[::-1]:
            started = now(like)
            compressor.combine_(average, payloads[:ranks], 1 / ranks)
            if number:
                seconds[ranks].append(now(like) - started)
    elements = payloads[0].parts()[1].numel()
    at = {"elements": like.numel(), "density": density, "sent": elements}
    return [{**at, "ranks": ranks, "seconds": found, "least_seconds": min(found)} for ranks, found in seconds.items()]


def _payload(like: Tensor, density: float, source: torch.Generator) -> Payload:
    """Return a possible payload of top-k: the gradient is cut into k stretches, and one position is sent of each."""
    count = max(1, int(density * like.numel()))
    stretch = like.numel() // count
    places = torch.arange(count) * stretch + torch.randint(stretch, (count,), generator=source)
    return TopK(density).packed(like, places.to(like.device))


if __name__ == "__main__":
    main()
