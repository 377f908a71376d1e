"""Horovod: Gloo or MPI on CPUs, NCCL on GPUs."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Handle
from resireduce.errors import ConfigError

_POLL_SECONDS = 5e-5
"""Horovod itself looks for messages once a millisecond."""


class HorovodCommunicator(Communicator):
    """All ranks of a Horovod job. ConfigError if Horovod is not there, or `horovod.torch.init()` was not called.

    Horovod pairs collectives by their names, and reports ranks that do not come. A number, equal on all ranks, precedes
    the name: two optimizers may have parameters of the same names.
    """

    _made = itertools.count()

    def __init__(self) -> None:
        self._prefix = f"{next(self._made)}."
        self._hvd = _initialised()
        self.rank, self.world_size = self._hvd.rank(), self._hvd.size()

    def check_devices(self, tensors: Iterable[Tensor]) -> None:
        if any(tensor.is_cuda for tensor in tensors) and not self._hvd.cuda_built():
            raise ConfigError(
                "backend: 'horovod' cannot send tensors of a GPU here: it was built without CUDA; build it with "
                "HOROVOD_GPU=CUDA and a CUDA toolkit, as the image cuda12 does, or give backend='torch'"
            )

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum; bfloat16, which Horovod does not know, is summed in float32."""
        how = {"op": self._hvd.Sum, "name": self._prefix + name}
        if tensor.dtype != torch.bfloat16:
            return self._deferred(self._hvd.allreduce_async_(tensor, **how))
        return self._deferred(self._hvd.allreduce_async(tensor.float(), **how), tensor.copy_)

    def _deferred(self, handle: int, finish: Callable[[Tensor], Tensor] = lambda result: result) -> Handle[Tensor]:
        return Handle(lambda: finish(self._wait(handle)), lambda: self._hvd.poll(handle))

    def _wait(self, handle: int) -> Any:
        """Sleep until the result of `handle` has come, and return it.

        `synchronize` alone keeps a core busy, which Horovod's own thread needs where there are as many ranks as cores.
        """
        while not self._hvd.poll(handle):
            time.sleep(_POLL_SECONDS)
        return self._hvd.synchronize(handle)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather of bytes, of whatever dtype. Unequal sizes cost a second, small message."""
        data = self._hvd.allgather_async(tensor.view(torch.uint8), name=self._prefix + name)
        numels = None
        if not equal_sizes:
            sizes_name = f"{self._prefix}{name}.sizes"
            numels = self._hvd.allgather_async(torch.tensor([tensor.nbytes], device="cpu"), name=sizes_name)

        def finish() -> Sequence[Tensor]:
            whole = self._wait(data)
            each = whole.numel() // self.world_size
            sizes = [each] * self.world_size if numels is None else self._wait(numels).tolist()
            return [row.view(tensor.dtype) for row in whole.split(sizes)]

        return Handle(finish)

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        whole = self._hvd.allgather_async(tensor.view(torch.uint8), name=self._prefix + name)
        return Handle(lambda: self._wait(whole).view(tensor.dtype))

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Launch an exchange of bytes, of whatever dtype; Horovod itself tells ranks how many come."""
        splits = torch.tensor([size * tensor.itemsize for size in sizes], dtype=torch.int32, device="cpu")
        data = tensor.view(torch.uint8)
        handle = self._hvd.alltoall_async(data, splits, name=self._prefix + name)

        def finish() -> Sequence[Tensor]:
            whole, counts = self._wait(handle)
            return [row.view(tensor.dtype) for row in whole.split(counts.tolist())]

        return Handle(finish)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        how = {"root_rank": 0, "name": self._prefix + name}
        self._wait(self._hvd.broadcast_async_(tensor.view(-1).view(torch.uint8), **how))
        return tensor


def import_horovod() -> Any:
    """Return the module `horovod.torch`. ConfigError, with the cure, if it is missing or built for another torch."""
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
