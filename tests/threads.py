"""A world of 1..n ranks in one process, one thread each."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Handle, Partition
from resireduce.comm.local import LocalCommunicator
from resireduce.errors import UsageError

T = TypeVar("T")
TIMEOUT_SECONDS = 60.0
"""How long a rank waits for the others."""


@dataclass
class _Collective:
    """A collective: the inputs of the ranks that have launched it so far."""

    name: str
    inputs: dict[int, Tensor] = field(default_factory=dict)
    readers: int = 0


@dataclass
class LocalWorld:
    """`size` ranks in this process. `run` starts a thread for each; collectives are paired by launch order."""

    size: int
    """Number of ranks."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _collectives: dict[int, _Collective] = field(default_factory=dict)
    _broken: bool = False
    _parts: dict[tuple[int, tuple[int, ...]], "LocalWorld"] = field(default_factory=dict)

    def run(self, work: Callable[["ThreadCommunicator"], T]) -> list[T]:
        """Return the results of `work(communicator)` on all ranks. If one raises, its exception is raised here, and the
        others stop."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._guard, work, rank) for rank in range(self.size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, ConnectionError)):
            raise error
        return [future.result() for future in futures]

    def _guard(self, work: Callable[["ThreadCommunicator"], T], rank: int) -> T:
        try:
            return work(ThreadCommunicator(rank, self))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Make all ranks that wait for another give up, in this world and in its parts."""
        with self._changed:
            self._broken, parts = True, list(self._parts.values())
            self._changed.notify_all()
        for part in parts:
            part.end()

    def part(self, number: int, ranks: tuple[int, ...]) -> "LocalWorld":
        """Return the world of `ranks`, the same for all ranks that ask with this `number`."""
        with self._changed:
            return self._parts.setdefault((number, ranks), LocalWorld(len(ranks), _broken=self._broken))

    def has_all(self, number: int) -> bool:
        """Whether all ranks have launched collective `number`, or one never will."""
        with self._changed:
            return self._broken or len(self._collectives[number].inputs) == self.size

    def launch(self, number: int, rank: int, name: str, tensor: Tensor) -> None:
        """Enter collective number `number`, called `name`, as rank `rank`, with `tensor`, which the others may read.

        Raises UsageError if another rank calls this collective by another name.
        """
        with self._changed:
            collective = self._collectives.setdefault(number, _Collective(name))
            if collective.name != name:
                raise UsageError(f"collective {number} is {collective.name!r} on one rank and {name!r} on rank {rank}")
            collective.inputs[rank] = tensor
            self._changed.notify_all()

    def wait(self, number: int) -> list[Tensor]:
        """Return all ranks' inputs of collective `number`, in rank order. ConnectionError if one is missing."""
        with self._changed:
            collective = self._collectives[number]
            done = self._changed.wait_for(
                lambda: self._broken or len(collective.inputs) == self.size, timeout=TIMEOUT_SECONDS
            )
            if not done or len(collective.inputs) < self.size:
                raise ConnectionError(f"collective {collective.name!r}: a rank did not come")
            collective.readers += 1
            if collective.readers == self.size:
                del self._collectives[number]
            return [collective.inputs[rank] for rank in range(self.size)]


class ThreadCommunicator(LocalCommunicator):
    """Rank `rank` of `world`."""

    def __init__(self, rank: int, world: LocalWorld):
        self._world, self.rank, self.world_size = world, rank, world.size
        self._launched = self._splits = 0

    def _exchange(self, tensor: Tensor, name: str) -> Handle[list[Tensor]]:
        number, self._launched = self._launched, self._launched + 1
        self._world.launch(number, self.rank, name, tensor)
        return Handle(lambda: self._world.wait(number), lambda: self._world.has_all(number))

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum, formed in rank order."""
        if self.world_size == 1:
            return Handle(lambda: tensor)
        # The others may read this rank's input after this rank has continued: they get a copy.
        inputs = self._exchange(tensor.clone(), name)

        def finish() -> Tensor:
            first, *others = inputs.wait()
            tensor.copy_(first)
            for other in others:
                tensor.add_(other)
            return tensor

        return Handle(finish, inputs.is_ready)

    def split(self, *partitions: Partition) -> list[Communicator]:
        """Return for each of `partitions` this rank's communicator with the ranks of its part."""
        own = [next(part for part in parts if self.rank in part) for parts in partitions]
        first, self._splits = self._splits, self._splits + len(own)
        worlds = [self._world.part(first + number, part) for number, part in enumerate(own)]
        return [ThreadCommunicator(part.index(self.rank), world) for part, world in zip(own, worlds, strict=True)]

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather of copies, or with a single rank of the tensor itself."""
        if self.world_size == 1:
            return Handle(lambda: [tensor])
        inputs = self._exchange(tensor.clone(), name)
        return Handle(lambda: list(torch.stack(inputs.wait())) if equal_sizes else inputs.wait())

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Launch an exchange of copies, or with a single rank of the tensor itself."""
        if self.world_size == 1:
            return Handle(lambda: [tensor])
        numbers = self._exchange(torch.tensor(sizes, device="cpu"), f"{name}.sizes")
        inputs = self._exchange(tensor.clone(), name)

        def finish() -> list[Tensor]:
            theirs = zip(inputs.wait(), numbers.wait(), strict=True)
            return [whole.split(parts.tolist())[self.rank] for whole, parts in theirs]

        return Handle(finish)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with rank 0's; return it."""
        if self.world_size == 1:
            return tensor
        return tensor.copy_(self._exchange(tensor.clone(), name).wait()[0])
