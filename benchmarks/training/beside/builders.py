"""Sets up a model for each way, as its own documentation says, without tuning. Needs torch.distributed initialised."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import resireduce
from benchmarks.core.ways import way
from resireduce.planning.memory import LiveBytes, held_tensors, track_states

Forward = Callable[[nn.Module], Tensor]
"""Returns the loss of the one batch, for a model or its wrapper."""


@dataclass(frozen=True)
class Loop:
    """A model that is set up, and the two calls beside its backward pass."""

    model: nn.Module
    """The module that takes the batch: the model, or its wrapper."""
    step: Callable[[], object]
    zero_grad: Callable[[], object]
    held: Callable[[], Mapping[str, list[Tensor]]] | None = None
    """Returns the model states as tensors, by kind, if the way can tell."""
    follow: Callable[[], LiveBytes] | None = None
    """Makes a tracker of all live tensors in a step except activations, if the way has one."""

    def train(self, forward: Forward) -> None:
        """Take one step, as in torch's tutorials."""
        self.zero_grad()
        forward(self.model).backward()
        self.step()


def adamw(parameters: Iterable[nn.Parameter], eight_bit: bool = False) -> Optimizer:
    """Return the optimizer of all ways. Raises ImportError if bitsandbytes is missing."""
    if not eight_bit:
        return torch.optim.AdamW(parameters, lr=1e-4)
    sys.path.append(f"{sys.prefix}/optimizers")  # where make installs other libraries' optimizers
    optimizer: Optimizer = import_module("bitsandbytes.optim").AdamW8bit(parameters, lr=1e-4)
    return optimizer


POWER_SGD_FROM = 2
"""The smallest value that torch allows with error feedback."""


def build(name: str, model: nn.Module) -> Loop:
    """Set up a model for a way or a form, by its name."""
    found = way(name)
    module, _, function = found.builder.rpartition(":")
    loop: Loop = getattr(import_module(module or __name__), function)(model, **found.settings)
    return loop


def ddp(model: nn.Module, bucket_view: bool = False, hook: str = "", eight_bit: bool = False) -> Loop:
    """Set up DistributedDataParallel, perhaps with torch's hook for PowerSGD, or with ours."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)
    if hook == "power_sgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=POWER_SGD_FROM)
        wrapped.register_comm_hook(state, _one_by_one)
    elif hook == "resireduce":
        resireduce.compress_ddp(wrapped, scheme="baseline")
    optimizer = adamw(model.parameters(), eight_bit)
    return Loop(wrapped, optimizer.step, optimizer.zero_grad)


def _one_by_one(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> Future[Tensor]:
    """Call torch's hook, and wait for each bucket.

    The hook sends its second and third messages from gloo's threads, so those of two buckets may arrive in different
    orders on different ranks: "Received data size doesn't match expected size".
    """
    sent: Future[Tensor] = powerSGD_hook.powerSGD_hook(state, bucket)
    sent.wait()
    return sent


def in_backward(model: nn.Module) -> Loop:
    """Set up PyTorch's recipe "How to save memory by fusing the optimizer step into the backward pass" (tutorial).

    The recipe is for one process; here each gradient is averaged over the ranks before it is used.
    """
    optimizers = {parameter: adamw([parameter]) for parameter in model.parameters()}

    def update(parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        assert gradient is not None
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return Loop(model, lambda: None, lambda: None)


def fsdp2(model: nn.Module) -> Loop:
    """Shard parameters, gradients and optimizer states over the ranks; layers are gathered one by one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw(model.parameters())
    return Loop(model, optimizer.step, optimizer.zero_grad)


def distributed(model: nn.Module, eight_bit: bool = False, sgd: bool = False, **settings: Any) -> Loop:
    """Set up this library."""
    plain = torch.optim.SGD(model.parameters(), lr=0.1) if sgd else adamw(model.parameters(), eight_bit)
    optimizer = resireduce.distribute(model, plain, **settings)
    return Loop(
        model,
        optimizer.step,
        optimizer.zero_grad,
        held=lambda: held_tensors(optimizer),
        follow=lambda: track_states(optimizer),
    )
