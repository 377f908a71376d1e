"""Fixtures of tests of the library."""

from collections.abc import Iterator

import pytest
import torch

from resireduce.kernels.ops import library


@pytest.fixture
def found_anew() -> Iterator[None]:
    """Look for compiled code anew in each test, and leave torch's threads as they were."""
    library.cache_clear()
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    library.cache_clear()
