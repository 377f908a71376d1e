"""Horovod: Gloo or MPI on CPUs, NCCL on GPUs."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Deferred, Handle
from resireduce.errors import ConfigError


class HorovodCommunicator(Communicator):
    """All ranks of a Horovod job. ConfigError if Horovod is not there, or `horovod.torch.init()` was not called.

    Every collective has a name, so Horovod pairs them by that and reports ranks that do not come. Before it stands a
    number, the same on all ranks: two optimizers may have parameters of the same names.
    """

    _made = itertools.count()

    def __init__(self) -> None:
        self._prefix = f"{next(self._made)}."
        self._hvd = _initialised()
        self.rank, self.world_size = self._hvd.rank(), self._hvd.size()

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum; bfloat16, which Horovod does not know, is summed by way of float32."""
        if tensor.dtype != torch.bfloat16:
            handle = self._hvd.allreduce_async_(tensor, op=self._hvd.Sum, name=self._prefix + name)
            return Deferred(lambda: self._hvd.synchronize(handle))
        wide = self._hvd.allreduce_async(tensor.float(), op=self._hvd.Sum, name=self._prefix + name)
        return Deferred(lambda: tensor.copy_(self._hvd.synchronize(wide)))

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather of bytes, whatever they stand for. Unequal sizes cost a second, small message."""
        data = self._hvd.allgather_async(tensor.view(torch.uint8), name=self._prefix + name)
        numels = None
        if not equal_sizes:
            numels = self._hvd.allgather_async(torch.tensor([tensor.nbytes]), name=f"{self._prefix}{name}.sizes")

        def finish() -> Sequence[Tensor]:
            whole = self._hvd.synchronize(data)
            each = whole.numel() // self.world_size
            sizes = [each] * self.world_size if numels is None else self._hvd.synchronize(numels).tolist()
            return [row.view(tensor.dtype) for row in whole.split(sizes)]

        return Deferred(finish)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with the bytes that it has on rank 0, whatever they stand for; return it."""
        self._hvd.broadcast_(tensor.view(-1).view(torch.uint8), root_rank=0, name=self._prefix + name)
        return tensor


def import_horovod() -> Any:
    """Return the module `horovod.torch`. ConfigError, with the cure, if it is not there or is of another torch."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise ConfigError(f"backend: 'horovod' cannot be used ({error}); install Horovod: make horovod") from error
    return hvd


def _initialised() -> Any:
    hvd = import_horovod()
    if not hvd.is_initialized():
        raise ConfigError("backend: 'horovod' needs horovod.torch.init() first; start the script with horovodrun")
    return hvd
