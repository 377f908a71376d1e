"""Horovod: Gloo or MPI on CPUs, NCCL on GPUs."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Handle, Partition
from resireduce.errors import ConfigError


class HorovodCommunicator(Communicator):
    """All ranks of a Horovod job. ConfigError if Horovod is not there; Horovod's own if `init()` was not called.

    Horovod pairs collectives by their names, and reports ranks that do not come. A number, equal on all ranks, precedes
    the name: two optimizers may have parameters of the same names.
    """

    _made = itertools.count()

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        """Join `ranks`, ascending, with this one among them, which must be a process set of Horovod; None: all."""
        self._prefix = f"{next(self._made)}."
        self._hvd = import_horovod()
        self._set = self._hvd.global_process_set if ranks is None else _process_set(tuple(ranks))
        self._first = 0 if ranks is None else ranks[0]
        self.rank, self.world_size = self._set.rank(), self._set.size()

    def split(self, *partitions: Partition) -> list[Communicator]:
        """ConfigError, with the cure, if parts are no process sets, which must be made when Horovod is initialised."""
        parts = [part for partition in partitions for part in partition]
        if not all(map(_process_set, parts)):
            raise ConfigError(
                "hierarchy: only 'flat' is allowed over Horovod without process sets of each node and of the ranks of "
                "each place in all nodes, which are made at its start: horovod.torch.init(process_sets=["
                + ", ".join(f"hvd.ProcessSet({list(part)})" for part in parts)
                + "])"
            )
        return [HorovodCommunicator(next(part for part in partition if self.rank in part)) for partition in partitions]

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum; bfloat16, which Horovod does not know, is summed in float32."""
        handle = self._hvd.allreduce_async_(_wide(tensor), op=self._hvd.Sum, **self._named(name))
        return Handle(lambda: tensor.copy_(self._wait(handle)), lambda: self._hvd.poll(handle))

    def reduce_scatter(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum of which this rank gets its part; bfloat16 is summed in float32."""
        dtype = tensor.dtype  # the tensor itself is not to be held
        handle = self._hvd.reducescatter_async(_wide(tensor), op=self._hvd.Sum, **self._named(name))
        return Handle(lambda: self._wait(handle).to(dtype), lambda: self._hvd.poll(handle))

    def _named(self, name: str) -> dict[str, Any]:
        return {"name": self._prefix + name, "process_set": self._set}

    def _wait(self, handle: int) -> Any:
        """Sleep until the result of `handle` has come, and return it."""
        while not self._hvd.poll(handle):  # `synchronize` alone keeps busy a core that Horovod's own thread may need
            time.sleep(5e-5)  # Horovod itself looks for messages once a millisecond
        return self._hvd.synchronize(handle)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather. Unequal sizes cost a second, small message."""
        whole = self.gather(tensor, name)
        if equal_sizes:
            return Handle(lambda: whole.wait().tensor_split(self.world_size))
        numels = self.gather(torch.tensor([tensor.numel()], device="cpu"), f"{name}.sizes")
        return Handle(lambda: whole.wait().split(numels.wait().tolist()))

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a gather of bytes, of whatever dtype."""
        handle = self._hvd.allgather_async(tensor.view(torch.uint8), **self._named(name))
        return Handle(lambda: self._wait(handle).view(tensor.dtype))

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Launch an exchange of bytes, of whatever dtype; Horovod itself tells ranks how many come."""
        splits = torch.tensor([size * tensor.itemsize for size in sizes], dtype=torch.int32, device="cpu")
        handle = self._hvd.alltoall_async(tensor.view(torch.uint8), splits, **self._named(name))

        def finish() -> Sequence[Tensor]:
            whole, counts = self._wait(handle)
            return [row.view(tensor.dtype) for row in whole.split(counts.tolist())]

        return Handle(finish)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        data = tensor.view(-1).view(torch.uint8)
        self._wait(self._hvd.broadcast_async_(data, root_rank=self._first, **self._named(name)))
        return tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def import_horovod() -> Any:
    """Return the module `horovod.torch`. ConfigError, with the cure, if it is missing or built for another torch."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise ConfigError(f"backend: 'horovod' cannot be used ({error}); install Horovod: make horovod") from error
    return hvd


def _process_set(ranks: tuple[int, ...]) -> Any:
    """Return the process set of these ranks that Horovod was initialised with; None if there is none."""
    from horovod.common import process_sets  # 0.28.1, its last release, has no public way to find one

    made = process_sets._basics._get_process_set_ids_and_ranks()
    number = next((number for number, members in made.items() if tuple(members) == ranks), None)
    return None if number is None else process_sets._temp_process_set_object(number)
