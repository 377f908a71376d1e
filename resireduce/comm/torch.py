"""torch.distributed: gloo on CPUs, NCCL on GPUs, and gloo where several ranks share one GPU."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from resireduce.comm.base import Communicator, Deferred, Handle, Partition, Polled
from resireduce.comm.pool import Pooled, acquire, acquire_part, release
from resireduce.comm.ragged import Brought, Ragged, RaggedExchange, RaggedGather
from resireduce.comm.staged import Unstaged, to_host
from resireduce.errors import ConfigError


@dataclass
class _Launched:
    work: dist.Work
    result: Tensor

    @property
    def is_ready(self) -> bool:
        """Whether the sum is there; always true on a GPU, where only its stream waits."""
        return self.result.is_cuda or self.work.is_completed()

    def wait(self) -> Tensor:
        self.work.wait()
        return self.result


@dataclass
class _Whole:
    """A gather of equal sizes, as one tensor."""

    rows: Brought

    def wait(self) -> Tensor:
        self.rows.work.wait()
        return self.rows.result.to(self.rows.device, non_blocking=True).view(-1)


class TorchCommunicator(Communicator):
    """The ranks of `group`; None: all ranks. ConfigError if no process group has been initialised.

    shares: whether collectives use `group` itself, as a hook of DistributedDataParallel must; otherwise they use
    another group of the same ranks, so that they cannot be confused with a collective of the user's own, between
    `backward` and `step`, or of another optimizer.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, shares: bool = False):
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError(
                "backend: 'torch' needs torch.distributed.init_process_group(...) first; "
                "start the script with torchrun, or choose backend='local' for one process"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ConfigError(f"group: {group!r} is not allowed; give a ProcessGroup that this rank is in, or None")
        self._use(Pooled(group) if group is not None and shares else acquire(group))

    def _use(self, pooled: Pooled) -> None:
        self._pooled = pooled
        self._release = weakref.finalize(self, release, self._pooled)
        self.group = group = pooled.group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        if dist.get_backend(group) == "nccl":
            self.control_device = torch.device("cuda", torch.cuda.current_device())
        self._is_gloo = dist.get_backend(group) == "gloo"
        self._ragged: Ragged | None = None

    @property
    def would_block(self) -> bool:
        """Whether a gather or an exchange, which must be launched before any other collective, still lacks sizes."""
        return self._ragged is not None and not self._ragged.is_known

    def close(self) -> None:
        """Let another optimizer use this process group."""
        self._release()

    def split(self, *partitions: Partition) -> list[Communicator]:
        """Return for each of `partitions` this rank's communicator, over a process group of its own."""
        numbers, made = dist.get_process_group_ranks(self.group), []
        for parts in partitions:
            part = TorchCommunicator.__new__(TorchCommunicator)
            part._use(acquire_part(self.group, tuple(tuple(numbers[rank] for rank in one) for one in parts)))
            made.append(part)
        return [*made]

    def ranks_of(self, group: object) -> list[int] | None:
        """Return the ranks of `group`, as numbered here, ascending; None if it is no process group of this rank's."""
        if not isinstance(group, dist.ProcessGroup):
            return None
        numbers, members = dist.get_process_group_ranks(self.group), dist.get_process_group_ranks(group)
        return [rank for rank, number in enumerate(numbers) if number in members]

    def all_reduce(self, tensor: Tensor, name: str) -> Polled[Tensor]:
        """Launch a sum."""
        self._finish_ragged()
        self._pooled.launched += 1
        near = to_host(tensor) if self._stages(tensor) else tensor
        launched = _Launched(dist.all_reduce(near, group=self.group, async_op=True), near)
        return launched if near is tensor else Unstaged(launched, tensor)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather. Unequal sizes cost a second, small message."""
        self._finish_ragged()
        if equal_sizes:
            return self.gather_rows(tensor, [tensor.numel()] * self.world_size)
        self._ragged = RaggedGather(self, tensor)
        return self._ragged

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Launch an exchange, which costs a second, small one, of the sizes."""
        self._finish_ragged()
        self._ragged = RaggedExchange(self, tensor, sizes)
        return self._ragged

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a gather of tensors of one size into one."""
        self._finish_ragged()
        return _Whole(self.gather_rows(tensor, [tensor.numel()] * self.world_size))

    def reduce_scatter(self, tensor: Tensor, name: str) -> Polled[Tensor]:
        """Launch a sum of which this rank gets its part. Gloo's own is not used, since it sums a copy of everything."""
        if dist.get_backend(self.group) != "nccl":
            whole = self.all_reduce(tensor, name)
            return Deferred(lambda: self._own(whole.wait()), lambda: whole.is_ready)
        self._finish_ragged()
        self._pooled.launched += 1
        own = tensor.new_empty(tensor.numel() // self.world_size)
        return _Launched(dist.reduce_scatter_tensor(own, tensor, group=self.group, async_op=True), own)

    def scatter_sum(self, tensor: Tensor, name: str) -> Polled[Tensor]:
        """Launch a sum of which this rank gets its part; over gloo it sums what all ranks send, in rank order.

        They are sent as bytes of whatever dtype, and all ranks' parts are there at once.
        """
        if dist.get_backend(self.group) == "nccl":
            return self.reduce_scatter(tensor, name)
        self._finish_ragged()
        sizes = [tensor.nbytes // self.world_size] * self.world_size
        pieces = self.send_pieces(tensor.view(torch.uint8), sizes, sizes)

        def finish() -> Tensor:
            first, *others = (piece.view(tensor.dtype) for piece in pieces.wait())
            total = first.clone()
            for other in others:
                total.add_(other)
            return total

        return Deferred(finish, pieces.work.is_completed)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """Overwrite `tensor` with that of rank 0 of the group; return it."""
        self._finish_ragged()
        self._pooled.launched += 1
        near = to_host(tensor) if self._stages(tensor) else tensor
        dist.broadcast(near, group=self.group, group_src=0)
        return tensor if near is tensor else tensor.copy_(near)

    def _stages(self, tensor: Tensor) -> bool:
        """Whether `tensor` travels through the host's memory."""
        return self._is_gloo and tensor.is_cuda

    def _finish_ragged(self) -> None:
        if self._ragged is not None:
            self._ragged.launch()
            self._ragged = None

    def gather_rows(self, tensor: Tensor, sizes: list[int]) -> Brought:
        """Launch a gather of 1-D `tensor`, equally long on all ranks; the first `sizes[i]` elements of rank i count."""
        self._pooled.launched += 1
        near = to_host(tensor) if self._stages(tensor) else tensor
        shape, pinned = (self.world_size, near.numel()), near is not tensor and tensor.is_cuda
        result = torch.empty(shape, dtype=near.dtype, device=near.device, pin_memory=pinned)
        work = dist.all_gather(list(result.unbind()), near, group=self.group, async_op=True)
        return Brought(work, result, sizes, tensor.device)

    def send_pieces(self, tensor: Tensor, sizes: list[int], theirs: list[int]) -> Brought:
        """Launch an exchange: `sizes[i]` elements of 1-D `tensor` go to rank i, `theirs[i]` come from it."""
        self._pooled.launched += 1
        near = to_host(tensor) if self._stages(tensor) else tensor
        result = near.new_empty(sum(theirs), pin_memory=near is not tensor and tensor.is_cuda)
        work = dist.all_to_all_single(result, near, theirs, sizes, group=self.group, async_op=True)
        return Brought(work, result, theirs, tensor.device)
