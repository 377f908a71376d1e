"""What tests of compiled code share: both forms side by side, and numbers of several kinds."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch

from resireduce.kernels.ops import SWITCH, library

needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CC") or "cc") is None, reason="no C compiler")


def both(monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[torch.Tensor]]) -> Iterator[tuple]:
    """Yield what `run` returns, by compiled code and without, side by side."""
    results = []
    for switch in ("1", "0"):
        monkeypatch.setenv(SWITCH, switch)
        library.cache_clear()
        results.append(run())
    yield from zip(*results, strict=True)


def values(n: int, kind: str) -> torch.Tensor:
    drawn = torch.randn(n, generator=torch.Generator().manual_seed(n))
    scales = {"normal": 1.0, "denormal": 1e-40, "huge": 1e37, "zero": 0.0, "negative zero": -0.0}
    if kind == "uneven":  # what is large lies together, and the sample hardly meets it
        return drawn * 1e-3 + (torch.arange(n) < n // 50) * drawn.sign()
    return drawn.sign() if kind == "ties" else drawn * scales[kind]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers that tell zeros of two signs apart."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
