"""Ranks that talk by torch.distributed, each optimizer in process groups of its own."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from resireduce.comm.base import Communicator, Handle, Partition
from resireduce.core.messages import ALIGNMENT
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


_pools: dict[tuple[tuple[int, ...], Partition], list[Pooled]] = {}
"""By ranks and how they are divided, in the order in which all have made them."""
_world: list[dist.ProcessGroup] = []


def acquire(base: dist.ProcessGroup | None, parts: Partition = ()) -> Pooled:
    """Return a group that no optimizer uses, of the ranks of `base` (None: all), or of the one of its `parts`, numbered
    as in the whole job, that this rank is in. All ranks of `base` call it together."""
    world = dist.group.WORLD
    assert world is not None
    if _world != [world]:  # torch.distributed was started again: groups of before are gone
        _pools.clear()
        _world[:] = [world]
    over = world if base is None else base
    ranks = tuple(dist.get_process_group_ranks(over))
    pool = _pools.setdefault((ranks, parts), [])
    found = _free_everywhere(pool, over)
    if found is None:
        own = next((part for part in parts if dist.get_rank() in part), ranks)
        how: dict[str, Any] = {}
        if base is not None:
            how = {"ranks": [*own], "backend": dist.get_backend(base), "use_local_synchronization": True}
        pool.append(found := Pooled(dist.new_group(timeout=_timeout(over), **how)))
    found.free = False
    return found


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


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """Return the time limit of `group`, as set by the user; None (torch's default) if this torch does not tell it."""
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    try:
        return group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return None


# --- Collectives ---


def to_host(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of `tensor` in the host's memory, pinned if it comes from a GPU, once it is complete."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


@dataclass
class Ragged:
    """A collective in which ranks send unequal numbers of elements: first of the sizes, then of the elements.

    The second is launched before any other collective of the communicator, at the latest when it is waited for. So all
    ranks launch in one order, wherever each of them waits.
    """

    sizes: Handle[Any]
    """Brings the sizes, as tensors of one element."""
    launch_elements: Callable[[list[int]], Handle[Sequence[Tensor]]]
    """Launches the second, given the sizes."""
    launched: Handle[Sequence[Tensor]] | None = None

    def launch(self) -> Handle[Sequence[Tensor]]:
        """Receive the sizes, and launch the collective of the elements, if that has not been done."""
        if self.launched is None:
            self.launched = self.launch_elements([int(size) for size in self.sizes.wait()])
        return self.launched


class TorchCommunicator(Communicator):
    """The ranks of `group` (None: all), or of the one of its `parts` that this rank is in. ConfigError if no process
    group has been initialised.

    shares: whether collectives use `group` itself, as a hook of DistributedDataParallel must; otherwise they use
    another group of the same ranks, so that they cannot be confused with a collective of the user's own, between
    `backward` and `step`, or of another optimizer.

    Gloo gathers only host tensors: those of a GPU, as of two ranks on one GPU, which NCCL refuses, travel through
    copies in pinned memory. The host waits for the GPU at each launch, so that nothing overlaps with the backward pass:
    suitable for measuring memory, not speed.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, shares: bool = False, parts: Partition = ()):
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError(
                "backend: 'torch' needs torch.distributed.init_process_group(...) first; "
                "start the script with torchrun, or choose backend='local' for one process"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ConfigError(f"group: {group!r} is not allowed; give a ProcessGroup that this rank is in, or None")
        self._pooled = Pooled(group) if group is not None and shares else acquire(group, parts)
        self._release = weakref.finalize(self, setattr, self._pooled, "free", True)
        self.group = group = self._pooled.group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self._backend = dist.get_backend(group)
        if self._backend == "nccl":
            self.control_device = torch.device("cuda", torch.cuda.current_device())
        self._ragged: Ragged | None = None

    @property
    def would_block(self) -> bool:
        """Whether a gather or an exchange, which must be launched before any other collective, still lacks sizes."""
        return self._ragged is not None and self._ragged.launched is None and not self._ragged.sizes.is_ready()

    def close(self) -> None:
        """Let another optimizer use this process group."""
        self._release()

    def split(self, *partitions: Partition) -> list[Communicator]:
        numbers = dist.get_process_group_ranks(self.group)
        renumbered = [tuple(tuple(numbers[rank] for rank in part) for part in parts) for parts in partitions]
        return [TorchCommunicator(self.group, parts=parts) for parts in renumbered]

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        near = self._near(tensor)
        work = dist.all_reduce(near, group=self.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            return tensor if near is tensor else tensor.copy_(near, non_blocking=True)

        return Handle(finish, lambda: near.is_cuda or work.is_completed())  # on a GPU only its stream waits

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather. Unequal sizes cost a second, small message, and padding to the largest."""
        if equal_sizes:
            rows = self._rows(self._near(tensor), tensor.device)
            return Handle(lambda: [*rows.wait()])

        def launch(sizes: list[int]) -> Handle[Sequence[Tensor]]:
            longest = max(1, -(-max(sizes) // ALIGNMENT)) * ALIGNMENT
            padded = pad(tensor, (0, longest - tensor.numel()))
            rows = self._rows(self._host(padded), tensor.device)
            return Handle(lambda: [row[:size] for row, size in zip(rows.wait(), sizes, strict=True)])

        own = self._near(torch.tensor([tensor.numel()], device=self.control_device))
        return self._begin(Ragged(self._rows(own, self.control_device), launch))

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Launch an exchange, which costs a second, small one, of the sizes."""
        one = [1] * self.world_size
        told = self._near(torch.tensor([*sizes], device=self.control_device))
        numbers = self._pieces(told, one, one, self.control_device)
        return self._begin(
            Ragged(numbers, lambda theirs: self._pieces(self._host(tensor), [*sizes], theirs, tensor.device))
        )

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        rows = self._rows(self._near(tensor), tensor.device)
        return Handle(lambda: rows.wait().view(-1))

    def reduce_scatter(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum of which this rank gets its part. Gloo's own is not used, since it sums a copy of everything."""
        if self._backend != "nccl":
            return super().reduce_scatter(tensor, name)
        near, own = self._near(tensor), tensor.new_empty(tensor.numel() // self.world_size)
        work = dist.reduce_scatter_tensor(own, near, group=self.group, async_op=True)
        return Handle(_then(work, own).wait)  # only the stream waits

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        near = self._near(tensor)
        dist.broadcast(near, group=self.group, group_src=0)
        return tensor if near is tensor else tensor.copy_(near)

    # --- what they share ---

    def _near(self, tensor: Tensor) -> Tensor:
        """Return `tensor`, or its copy in the host's memory if it travels through that, to be sent now: a ragged
        collective that is under way has launched its second by then."""
        if self._ragged is not None:
            self._ragged.launch()
            self._ragged = None
        return self._host(tensor)

    def _host(self, tensor: Tensor) -> Tensor:
        self._pooled.launched += 1
        return to_host(tensor) if self._stages(tensor) else tensor

    def _stages(self, tensor: Tensor) -> bool:
        return self._backend == "gloo" and tensor.is_cuda

    def _begin(self, ragged: Ragged) -> Handle[Sequence[Tensor]]:
        self._ragged = ragged
        return Handle(lambda: ragged.launch().wait())

    def _rows(self, near: Tensor, device: torch.device) -> Handle[Tensor]:
        """Launch a gather of 1-D `near`, equally long on all ranks, into rows on `device`: [world size, length]."""
        pinned, shape = near.device != device, (self.world_size, near.numel())
        result = torch.empty(shape, dtype=near.dtype, device=near.device, pin_memory=pinned)
        work = dist.all_gather(list(result.unbind()), near, group=self.group, async_op=True)
        return _then(work, result, device)

    def _pieces(
        self, near: Tensor, sizes: list[int], theirs: list[int], device: torch.device
    ) -> Handle[Sequence[Tensor]]:
        """Launch an exchange: `sizes[i]` elements of 1-D `near` go to rank i, `theirs[i]` come from it."""
        result = near.new_empty(sum(theirs), pin_memory=near.device != device)
        work = dist.all_to_all_single(result, near, theirs, sizes, group=self.group, async_op=True)
        brought = _then(work, result, device)
        return Handle(lambda: brought.wait().split(theirs), brought.is_ready)


def _then(work: dist.Work, result: Tensor, device: torch.device | None = None) -> Handle[Tensor]:
    """Return the handle of `work`, which brings `result`, to be copied to `device`."""

    def finish() -> Tensor:
        work.wait()
        return result if device is None else result.to(device, non_blocking=True)

    return Handle(finish, work.is_completed)
