"""Ranks that talk by torch.distributed, each optimizer in process groups of its own."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from resireduce.comm.base import Communicator, Handle, Partition
from resireduce.core.messages import ALIGNMENT
from resireduce.errors import ConfigError

T = TypeVar("T")

# --- Process groups of torch.distributed: one for each optimizer in use, reused when that is closed ---
#
# Each holds sockets and threads until the program ends, so they are not created again for every optimizer. Two
# optimizers in use never share one: their collectives would be confused.


@dataclass
class Pooled:
    """A process group, and whether it is free, so that no optimizer of this rank uses it."""

    group: dist.ProcessGroup
    launched: int = 0
    """Collectives that this rank has launched in it, counted by the code that launches them."""
    free: bool = False


_pools: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[Any, list[Pooled]]] = weakref.WeakKeyDictionary()
"""By the group of all ranks, which is another one if torch.distributed is started again; then by ranks and how they are
divided, in the order in which all have made them."""


def acquire(base: dist.ProcessGroup | None, parts: Partition = ()) -> Pooled:
    """Return a group that no optimizer uses, of the ranks of `base` (None: all), or of the one of its `parts`, numbered
    as in the whole job, that this rank is in. All ranks of `base` call it together."""
    world = dist.group.WORLD
    assert world is not None
    over = world if base is None else base
    ranks = tuple(dist.get_process_group_ranks(over))
    pool = _pools.setdefault(world, {}).setdefault((ranks, parts), [])
    found = None
    if pool:  # all must have released it after as many collectives: a rank may lose an optimizer within a step
        mine = torch.tensor([one.launched if one.free else -1 for one in pool], device=_device(over))
        both = torch.stack((mine, -mine))
        dist.all_reduce(both, dist.ReduceOp.MIN, group=over)
        agreed = zip(pool, *both.tolist(), strict=True)
        found = next((one for one, least, most in agreed if 0 <= least == -most), None)
    if found is None:
        own = next((part for part in parts if dist.get_rank() in part), ranks)
        how: dict[str, Any] = {}
        if base is not None:
            how = {"ranks": [*own], "backend": dist.get_backend(base), "use_local_synchronization": True}
        options = getattr(over._get_backend(_device(over)), "options", None)  # of the user's group, if torch tells them
        pool.append(found := Pooled(dist.new_group(timeout=getattr(options, "_timeout", None), **how)))
    found.free = False
    return found


def _device(group: dist.ProcessGroup) -> torch.device:
    is_on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_on_gpu else torch.device("cpu")


# --- Collectives ---


NOTHING: tuple[Handle[Any], Callable[[], object]] = Handle(list, lambda: True), list
"""Where no collective of unequal sizes is under way: a handle that is ready, and a launch that does nothing."""


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
        if not dist.is_initialized():
            raise ConfigError(
                "backend: 'torch' needs torch.distributed.init_process_group(...) first; "
                "start the script with torchrun, or choose backend='local' for one process"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ConfigError(f"group: {group!r} is not allowed; give a ProcessGroup that this rank is in, or None")
        self._pooled = Pooled(group) if group is not None and shares else acquire(group, parts)
        # Another optimizer may use the process group from then on, also where this is gone without a call.
        self.close = weakref.finalize(self, setattr, self._pooled, "free", True)  # type: ignore[method-assign]
        self.group = group = self._pooled.group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self._backend, self.control_device = dist.get_backend(group), _device(group)
        self._ragged = NOTHING  # else the handle that brings the sizes, and what launches the elements then

    @property
    def would_block(self) -> bool:
        """Whether a gather or an exchange, which must be launched before any other collective, still lacks sizes."""
        return not self._ragged[0].is_ready()

    def split(self, *partitions: Partition) -> list[Communicator]:
        numbers = dist.get_process_group_ranks(self.group)
        renumbered = [tuple(tuple(numbers[rank] for rank in part) for part in parts) for parts in partitions]
        return [TorchCommunicator(self.group, parts=parts) for parts in renumbered]

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        near = self._near(tensor)
        work = dist.all_reduce(near, group=self.group, async_op=True)
        handle = _after(work, lambda: tensor if near is tensor else tensor.copy_(near, non_blocking=True))
        return Handle(handle.wait) if near.is_cuda else handle  # on a GPU only its stream waits

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Launch a gather. Unequal sizes cost a second, small message, and padding to the largest."""
        if equal_sizes:
            rows = self._rows(tensor)
            return Handle(lambda: [*rows.wait()])

        def launch(sizes: list[int]) -> Handle[Sequence[Tensor]]:
            longest = max(1, -(-max(sizes) // ALIGNMENT)) * ALIGNMENT
            rows = self._rows(pad(tensor, (0, longest - tensor.numel())))
            return Handle(lambda: [row[:size] for row, size in zip(rows.wait(), sizes, strict=True)])

        return self._in_two(self._rows(torch.tensor([tensor.numel()], device=self.control_device)), launch)

    def all_to_all(self, tensor: Tensor, sizes: Sequence[int], name: str) -> Handle[Sequence[Tensor]]:
        """Launch an exchange, which costs a second, small one, of the sizes."""
        one, told = [1] * self.world_size, torch.tensor([*sizes], device=self.control_device)
        return self._in_two(self._pieces(told, one, one), lambda theirs: self._pieces(tensor, [*sizes], theirs))

    def gather(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        rows = self._rows(tensor)
        return Handle(lambda: rows.wait().view(-1))

    def reduce_scatter(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Launch a sum of which this rank gets its part. Gloo's own is not used, since it sums a copy of everything."""
        if self._backend != "nccl":
            return super().reduce_scatter(tensor, name)
        near, own = self._near(tensor), tensor.new_empty(tensor.numel() // self.world_size)
        work = dist.reduce_scatter_tensor(own, near, group=self.group, async_op=True)
        return Handle(_after(work, lambda: own).wait)  # only the stream waits

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        near = self._near(tensor)
        dist.broadcast(near, group=self.group, group_src=0)
        return tensor if near is tensor else tensor.copy_(near)

    # --- what they share ---

    def _near(self, tensor: Tensor) -> Tensor:
        """Return `tensor`, or its pinned copy in the host's memory if it travels through that, to be sent now."""
        self._ragged[1]()  # the elements of a collective of unequal sizes that is under way leave first
        self._pooled.launched += 1
        if self._backend != "gloo" or not tensor.is_cuda:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True).copy_(tensor)

    def _in_two(
        self, sizes: Handle[Any], launch_elements: Callable[[list[int]], Handle[Sequence[Tensor]]]
    ) -> Handle[Sequence[Tensor]]:
        """Return the handle of a second collective, which sends as many elements as the first says in its `sizes`."""

        @cache
        def launch() -> Handle[Sequence[Tensor]]:
            self._ragged = NOTHING
            return launch_elements([int(size) for size in sizes.wait()])

        self._ragged = sizes, launch  # before any other collective: all ranks launch in one order, wherever each waits
        return Handle(lambda: launch().wait())

    def _rows(self, tensor: Tensor) -> Handle[Tensor]:
        """Launch a gather of 1-D `tensor`, equally long on all ranks, into rows: [world size, length]."""
        near, device = self._near(tensor), tensor.device
        shape, pinned = (self.world_size, near.numel()), near.device != device
        result = torch.empty(shape, dtype=near.dtype, device=near.device, pin_memory=pinned)
        work = dist.all_gather(list(result.unbind()), near, group=self.group, async_op=True)
        return _after(work, lambda: result.to(device, non_blocking=True))

    def _pieces(self, tensor: Tensor, sizes: list[int], theirs: list[int]) -> Handle[Sequence[Tensor]]:
        """Launch an exchange: `sizes[i]` elements of 1-D `tensor` go to rank i, `theirs[i]` come from it."""
        near, device = self._near(tensor), tensor.device
        result = near.new_empty(sum(theirs), pin_memory=near.device != device)
        work = dist.all_to_all_single(result, near, theirs, sizes, group=self.group, async_op=True)
        return _after(work, lambda: result.to(device, non_blocking=True).split(theirs))


def _after(work: dist.Work, result: Callable[[], T]) -> Handle[T]:
    """Return the handle of `work`, which makes its `result` when it has been waited for."""

    def wait() -> T:
        work.wait()
        return result()

    return Handle(wait, work.is_completed)
