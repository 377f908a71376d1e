"""torch.distributed: gloo on CPUs, NCCL on GPUs."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from resireduce.comm.base import Communicator, Handle
from resireduce.errors import ConfigError


@dataclass
class _Launched:
    work: dist.Work
    result: Tensor

    def wait(self) -> Tensor:
        self.work.wait()
        return self.result


def _timeout() -> timedelta | None:
    """That of the default group, as the user set it; None (torch's own) if this torch does not tell."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    try:
        return dist.group.WORLD._get_backend(device).options._timeout  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):
        return None


class TorchCommunicator(Communicator):
    """The ranks of `group`; None makes a new group of all ranks, so that a collective of the user's own, between
    `backward` and `step`, cannot be taken for one of these. The process group must have been initialised."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError(
                "backend: 'torch' needs torch.distributed.init_process_group(...) first; "
                "start the script with torchrun, or choose backend='local' for one process"
            )
        self.group = group = dist.new_group(timeout=_timeout()) if group is None else group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        if dist.get_backend(group) == "nccl":
            self.control_device = torch.device("cuda", torch.cuda.current_device())

    def all_reduce(self, tensor: Tensor, name: str) -> Handle:
        """Asynchronous sum."""
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return _Launched(work, tensor)

    def all_gather(self, tensor: Tensor, name: str) -> Handle:
        """Asynchronous gather."""
        result = torch.empty((self.world_size, tensor.numel()), dtype=tensor.dtype, device=tensor.device)
        work = dist.all_gather(list(result.unbind()), tensor, group=self.group, async_op=True)
        return _Launched(work, result)

    def broadcast_(self, tensor: Tensor, name: str) -> Tensor:
        """From the group's rank 0."""
        dist.broadcast(tensor, group=self.group, group_src=0)
        return tensor
