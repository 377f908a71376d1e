"""Times the averaging of all ranks' payloads of a gradient, by the number of ranks."""

import torch
from torch import Tensor

from benchmarks.training.compress_cases import now
from resireduce.compressors.topk import TopK
from resireduce.payload import Payload

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
