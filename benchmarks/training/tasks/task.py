"""The interface of tasks, and what all of them need: sharding, hashing, batches, evaluation mode."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
Phase = Literal["pretrain", "train"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings that a task's data depend on."""

    phase: Phase = "train"
    """Chooses the part of the data that is trained on and held out."""
    data: str | None = None
    """Name of the data set in `core.registry.DATASETS`; None for tasks whose data come with installed packages."""
    root: Path = Path("data")
    """Folder of prepared data sets."""
    synthetic: bool = False
    """Make random inputs of the right shapes; nothing is read."""
    length: int | None = None
    """Tokens of a sample."""
    seed: int = 0
    """Seed of augmentation and of synthetic inputs; the order of samples is the trainer's."""
    released: frozenset[str] = frozenset()
    """Names of the released code's deviations that are to be reproduced."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the phase is one that tasks know."""
        if self.phase not in get_args(Phase):
            raise ValueError(f"phase is {self.phase!r}, allowed are {', '.join(get_args(Phase))}")


class Task(Protocol):
    """Data, loss and metric of one kind of problem.

    A task is made with its setting, and does all its loading there.  ``metric`` is the metric's name as it stands in
    tables, ``unit`` what throughput is counted in: images, tokens.
    """

    metric: str
    higher_is_better: bool
    unit: str
    units_per_sample: int

    def __init__(self, setting: Setting) -> None:
        """Load or make the data."""

    def data_hash(self) -> str:
        """Return the SHA-256 of the bytes really used, in hexadecimal digits."""
        ...

    def __len__(self) -> int:
        """Return the number of training samples."""
        ...

    def batch(self, indices: Tensor, step: int = 0) -> Batch:
        """Gather the training samples with these indices (int64, one dimension) into tensors, samples first.

        Augmentation depends on the setting's seed, on `step` and on the index alone: the same on any number of ranks.
        """
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of the batch, a scalar to call backward on; model and batch share one device."""
        ...

    def evaluate(self, model: nn.Module, rank: int, world_size: int) -> Tensor:
        """Return this rank's sums (float64, one dimension) over its shard of the held-out samples.

        Shards are disjoint and cover every sample once, so that adding the sums over ranks and calling `metrics_from`
        gives the metrics whatever the number of ranks, up to rounding.
        """
        ...

    def metrics_from(self, sums: Tensor) -> dict[str, float]:
        """Turn sums that were added over all ranks into all metrics by name; `metric` is one of them."""
        ...


def shard(count: int, rank: int, world_size: int) -> range:
    """Return the held-out samples of this rank: every world_size-th one, with no padding; possibly none.

    Raises:
        ValueError: if rank is not in [0, world_size).
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, allowed is 0 to {world_size - 1} with world_size {world_size}")
    return range(rank, count, world_size)


def chunks(indices: range, size: int) -> Iterator[range]:
    """Cut indices into runs of at most `size`."""
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def sha256(parts: Iterable[bytes]) -> str:
    """Hash byte strings in order, each with its length, so that moving a boundary changes the hash."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def to_device(batch: Batch, model: nn.Module) -> Batch:
    """Copy the batch to where the model's parameters are (no copy if it is there)."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode without gradients, and back into the mode it was in."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def installed(package: str) -> Distribution:
    """Find an installed distribution whose files serve as data.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return distribution(package)
    except PackageNotFoundError:
        raise ValueError(
            f"the data come from package {package!r}, which is not installed: run make to set up"
        ) from None
