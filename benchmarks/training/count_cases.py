"""Counts the elements sent by compressors that aim at a density, for inputs drawn from known distributions.

`benchmarks.micro.counts_command` has it measured.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from resireduce.compressors.dgc import DGCSimple
from resireduce.compressors.packed import SparseCompressor
from resireduce.compressors.thresholds import FITS, GaussianK, RedSync, RedSyncTrim, SIDCo
from resireduce.pieces import share


def _t3(numel: int, source: Generator) -> Tensor:
    """Draw from Student's t with three degrees of freedom."""
    squares = torch.randn(3, numel, generator=source).square().mean(0)
    return torch.randn(numel, generator=source) / squares.sqrt()


INPUTS: dict[str, Callable[[int, Generator], Tensor]] = {
    "normal": lambda numel, source: torch.randn(numel, generator=source),
    "Laplace": lambda numel, source: (
        torch.empty(numel).exponential_(generator=source) * torch.randn(numel, generator=source).sign()
    ),
    "t3": _t3,
}


def list_cases(density: float) -> Iterator[tuple[str, SparseCompressor]]:
    """Yield, by name, all compressors that aim at `density` by a threshold and may miss it; SIDCo once per stage count.

    dgc, which also draws a sample, never sends more than the density, and topk sends exactly the density.
    """
    for rounds in (2, 10):
        yield f"dgc-simple, {rounds} rounds", DGCSimple(density, rounds=rounds)
    for rounds in (3, 4):
        yield f"gaussian, {rounds} rounds", GaussianK(density, rounds=rounds)
    yield "redsync", RedSync(density)
    yield "redsync-trim", RedSyncTrim(density)
    for fit in FITS:
        for stages in (1, 2, 3):
            yield f"sidco {fit}, {stages} stage{'s' * (stages > 1)}", SIDCo(density, fit=fit, stages=stages)


def counted(elements: int, densities: Sequence[float], draws: int) -> list[dict[str, Any]]:
    """Return a row for each density, input and case: the target k, and the number of elements sent in each draw."""
    rows: dict[tuple[float, str, str], dict[str, Any]] = {}
    for kind, make in INPUTS.items():
        for draw in range(draws):
            flat = make(elements, Generator().manual_seed(draw))
            for density in densities:
                for case, compressor in list_cases(density):
                    at = {"case": case, "density": density, "input": kind, "target": share(density, elements)}
                    row = rows.setdefault((density, kind, case), {**at, "counts": []})
                    row["counts"].append(len(compressor.select(flat, kind, draw)))
    return [rows[key] for key in sorted(rows, key=lambda key: -key[0])]
