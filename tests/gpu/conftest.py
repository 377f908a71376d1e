"""Contracts of the library with tensors of a device: a GPU's, or with RESIREDUCE_DEVICE=cpu the CPU's, as a rehearsal.

`make test`, which hides GPUs, rehearses them too; elsewhere they are skipped without a GPU. `python -m benchmarks
measure gpu` runs each file in its own process.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from benchmarks.core.devices import wanted_device
from benchmarks.training.place import settle_arithmetic


def is_rehearsal() -> bool:
    return wanted_device() == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") == ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent.name == "gpu"]
    skipped = not is_rehearsal() and not torch.cuda.is_available()
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if skipped:
            item.add_marker(pytest.mark.skip(reason="no GPU; RESIREDUCE_DEVICE=cpu runs it on the CPU"))


@pytest.fixture
def device() -> Iterator[torch.device]:
    """Where tensors lie; sums are the same each time, as in cells."""
    device = torch.device("cpu" if is_rehearsal() else "cuda")
    was, fills = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    settle_arithmetic(device)
    yield device
    torch.use_deterministic_algorithms(was)
    torch.utils.deterministic.fill_uninitialized_memory = fills
