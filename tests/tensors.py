"""Tensors of every kind that a gradient may be, for property tests."""

import hypothesis.strategies as st
import torch
from torch import Tensor

KINDS = ("normal", "uneven", "ties", "equal", "sparse", "zeros", "huge", "tiny")


def gradient(*shape: int, seed: int = 7) -> Tensor:
    """Normal, and the same every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(kind: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Finite in any of torch's floating-point dtypes."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    values = {
        "normal": lambda: normal,
        "uneven": lambda: normal * torch.logspace(-3, 3, normal.numel(), dtype=torch.float64).view(shape),
        "ties": lambda: (normal * 2).round() / 4,
        "equal": lambda: torch.full_like(normal, 0.25).copysign(normal),
        "sparse": lambda: torch.where(normal > 1.5, normal, 0.0),
        "zeros": lambda: torch.zeros_like(normal),
        "huge": lambda: normal.clamp(-4, 4) * 16_000,
        "tiny": lambda: normal * 1e-6,
    }
    return values[kind]().to(dtype)


def tensors(dtypes: tuple[torch.dtype, ...] = (torch.float32,), rows: int = 24, columns: int = 24) -> st.SearchStrategy:
    """Matrices of at most so many rows and columns, of any kind, often not even in size."""
    shapes = st.tuples(st.integers(1, rows), st.integers(1, columns))
    return st.builds(make, st.sampled_from(KINDS), shapes, st.integers(0, 2**31), st.sampled_from(dtypes))


densities = st.one_of(st.sampled_from([0.001, 0.01, 0.5, 1.0]), st.floats(0.001, 1.0))
