"""Ranks that talk by torch.distributed, each optimizer in process groups of its own."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from resireduce.comm.base import Communicator, Deferred, Handle, Partition, Polled
from resireduce.core.payload import ALIGNMENT
from resireduce.errors import ConfigError

# --- Process groups of torch.distributed: one for each optimizer in use, reused when that is closed ---
#
# Each holds sockets and threads until the program ends, so they are not created again for every optimizer. Two
# optimizers in use never share one: their collectives would be confused.


@dataclass
class Pooled:
    """A process group, and whether an optimizer of this rank uses it."""

    group: dist.ProcessGroup
    launched: int = 0
    """Collectives that this rank has launched in it, counted by the code that launches them."""
    free: bool = False
    """Whether no optimizer of this rank uses it."""


_Key = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
_pools: dict[_Key, list[Pooled]] = {}  # by ranks and how they are divided, in the order in which all have made them
_world: list[dist.ProcessGroup] = []


def acquire(base: dist.ProcessGroup | None) -> Pooled:
    """Return a group of the ranks of `base` (None: all) that no optimizer uses. All these ranks call it together."""
    world = dist.group.WORLD
    assert world is not None
    if _world != [world]:  # torch.distributed was started again: groups of before are gone
        _pools.clear()
        _world[:] = [world]
    over = world if base is None else base
    ranks = tuple(dist.get_process_group_ranks(over))
    return _acquire((ranks, ()), over, lambda: _new_group(base, ranks))


def acquire_part(over: dist.ProcessGroup, parts: tuple[tuple[int, ...], ...]) -> Pooled:
    """Return a group that no optimizer uses, of the one of `parts` of the ranks of `over` that this rank is in.

    All ranks of `over` must call it together; `parts` contain each rank once, numbered as in the whole job.
    """
    own = next(part for part in parts if dist.get_rank() in part)
    return _acquire((tuple(dist.get_process_group_ranks(over)), parts), over, lambda: _new_group(over, own))


def _acquire(key: _Key, over: dist.ProcessGroup, make: Callable[[], dist.ProcessGroup]) -> Pooled:
    pool = _pools.setdefault(key, [])
    found = _free_everywhere(pool, over)
    if found is None:
        pool.append(found := Pooled(make()))
    found.free = False
    return found


def release(pooled: Pooled) -> None:
    """Let the group `pooled` be acquired again, once all its ranks have released it."""
    pooled.free = True


def _free_everywhere(pool: list[Pooled], over: dist.ProcessGroup) -> Pooled | None:
    """Return a group that all ranks of `over` have released after equally many collectives: one rank may have lost an
    optimizer that another still has, or may have lost it in the middle of a step."""
    if not pool:
        return None
    device = "cuda" if dist.get_backend(over) == "nccl" else "cpu"
    mine = torch.tensor([one.launched if one.free else -1 for one in pool], device=device)
    both = torch.stack((mine, -mine))
    dist.all_reduce(both, dist.ReduceOp.MIN, group=over)
    fewest, most = both[0].tolist(), (-both[1]).tolist()
    agreed = (one for one, low, high in zip(pool, fewest, most, strict=True) if 0 <= low == high)
    return next(agreed, None)


def _new_group(base: dist.ProcessGroup | None, ranks: tuple[int, ...]) -> dist.ProcessGroup:
    if base is None:
        return dist.new_group(timeout=_timeout(_world[0]))
    backend = dist.get_backend(base)
    return dist.new_group(list(ranks), timeout=_timeout(base), backend=backend, use_local_synchronization=True)


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """Return the time limit of `group`, as set by the user; None (torch's default) if this torch does not tell it."""
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    try:
        return group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return None


# --- GPU tensors over gloo, which gathers only host tensors, through copies in pinned memory ---
#
# Two ranks on one GPU, which NCCL refuses, need it. The host waits for the GPU at each launch, so that nothing
# overlaps with the backward pass: suitable for measuring memory, not speed.


def to_host(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of `tensor` in the host's memory, pinned if it comes from a GPU, once it is complete."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


@dataclass
class Unstaged:
    """The handle of a collective whose result in the host's memory is to be copied into `target`."""

    handle: Polled[Tensor]
    target: Tensor

    @property
    def is_ready(self) -> bool:
        """Whether the result is in the host's memory."""
        return self.handle.is_ready

    def wait(self) -> Tensor:
        """Wait for the result, copy it into `target`, and return `target`."""
        return self.target.copy_(self.handle.wait(), non_blocking=True)


# --- Collectives of torch.distributed in which ranks send unequal numbers of elements: sizes first, then what is sent
# ---


@dataclass
class Brought:
    """A collective under way that brings `sizes[i]` elements from rank i.

    The result has them one after the other, or at the beginning of equally long rows.
    """

    work: dist.Work
    result: Tensor
    sizes: list[int]
    device: torch.device

    def wait(self) -> Sequence[Tensor]:
        """Wait for the elements, and return those of each rank, in rank order."""
        self.work.wait()
        result = self.result.to(self.device, non_blocking=True)
        if result.dim() == 1:
            return result.split(self.sizes)
        return [row[:size] for row, size in zip(result.unbind(), self.sizes, strict=True)]


class Launches(Protocol):
    """The communicator that launches these collectives."""

    world_size: int
    """Number of ranks."""
    control_device: torch.device
    """Where sizes must lie."""

    def gather_rows(self, tensor: Tensor, sizes: list[int]) -> Brought:
        """Launch a gather of 1-D `tensor`, equally long on all ranks; the first `sizes[i]` elements of rank i count."""

    def send_pieces(self, tensor: Tensor, sizes: list[int], theirs: list[int]) -> Brought:
        """Launch an exchange: `sizes[i]` elements of 1-D `tensor` go to rank i, `theirs[i]` come from it."""


class Ragged(ABC):
    """A collective of unequal sizes: first of the sizes, then of the elements.

    The second is launched before any other collective of the communicator, at the latest when it is waited for. So all
    ranks launch in one order, wherever each of them waits.

    Args:
        communicator: launches both.
        tensor: 1-D, what this rank sends.
        sizes: the collective that brings the sizes, under way.
    """

    def __init__(self, communicator: Launches, tensor: Tensor, sizes: Brought):
        self._communicator, self._tensor, self._sizes = communicator, tensor, sizes
        self._launched: Handle[Sequence[Tensor]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether all ranks' sizes are there."""
        return self._launched is not None or self._sizes.work.is_completed()

    def launch(self) -> Handle[Sequence[Tensor]]:
        """Receive the sizes, and launch the collective of the elements, if that has not been done."""
        if self._launched is None:
            self._launched = self._launch([int(size) for size in self._sizes.wait()])
        return self._launched

    def wait(self) -> Sequence[Tensor]:
        """Return what each rank has sent to this one, in the order of ranks."""
        return self.launch().wait()

    @abstractmethod
    def _launch(self, theirs: list[int]) -> Handle[Sequence[Tensor]]: ...


class RaggedGather(Ragged):
    """A gather of tensors that are padded to the largest.

    Args:
        communicator: launches the gathers of the sizes and of the elements.
        tensor: 1-D, of any size.
    """

    def __init__(self, communicator: Launches, tensor: Tensor):
        size = torch.tensor([tensor.numel()], device=communicator.control_device)
        super().__init__(communicator, tensor, communicator.gather_rows(size, [1] * communicator.world_size))

    def _launch(self, theirs: list[int]) -> Handle[Sequence[Tensor]]:
        longest = max(1, -(-max(theirs) // ALIGNMENT)) * ALIGNMENT
        padded = pad(self._tensor, (0, longest - self._tensor.numel()))
        return self._communicator.gather_rows(padded, theirs)


class RaggedExchange(Ragged):
    """An exchange without padding.

    Args:
        communicator: launches the exchanges of the sizes and of the elements.
        tensor: 1-D, what this rank has for rank 0, followed by what it has for rank 1, and so on.
        sizes: how many elements it has for each rank.
    """

    def __init__(self, communicator: Launches, tensor: Tensor, sizes: Sequence[int]):
        self._own = list(sizes)
        one = [1] * communicator.world_size
        told = torch.tensor(self._own, device=communicator.control_device)
        super().__init__(communicator, tensor, communicator.send_pieces(told, one, one))

    def _launch(self, theirs: list[int]) -> Handle[Sequence[Tensor]]:
        return self._communicator.send_pieces(self._tensor, self._own, theirs)


# --- torch.distributed: gloo on CPUs, NCCL on GPUs, and gloo where several ranks share one GPU ---


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
