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
from resireduce.grouping import Grouping, compressible, find_groups
from resireduce.planning.memory import LiveBytes, counted_states, held_tensors, track_states

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
    loop: Loop = globals()[found.builder](model, **found.settings)
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


# --- Error feedback with top-k as in GRACE (Xu et al., ICDCS 2021) and in the paper's released code ---
#
# These are new implementations of the same computations with the same live tensors; no code is taken from either.
# Gradients stay in `.grad`, each is compressed as soon as it is ready, and `step()` averages the payloads of all ranks.
# The same tensors are compressed as by the library: not 1-D, of 10,000 elements or more.

DENSITY = 0.01
BETA = GAMMA = 1.0
"""Factors of the residual and of the gradient, which both forms have."""


class Form:
    """GRACE's form: a full residual for each tensor, a dense copy of each rank's message."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]):
        self.model, self.parameters = model, parameters
        self.names = {parameter: name for name, parameter in parameters.items()}
        self.stored: dict[str, list[Tensor]] = {}
        """Residuals kept until the next step, by tensor or by group."""
        self._sent: dict[str, tuple[Tensor, Tensor]] = {}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.take)

    def take(self, parameter: nn.Parameter) -> None:
        """Compress a gradient that is ready, or average it if it is sent dense."""
        name, gradient = self.names.get(parameter), parameter.grad
        assert gradient is not None
        if name is None:
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())
            return
        compensated = self.compensate(name, gradient)
        self._sent[name] = values, places = _top(compensated)
        self.update(name, compensated, _dense(compensated, values, places))

    def compensate(self, name: str, gradient: Tensor) -> Tensor:
        """Add residual and gradient: this makes two scaled temporaries and their sum."""
        return BETA * self.stored[name][0] + GAMMA * gradient if name in self.stored else gradient.clone()

    def update(self, name: str, compensated: Tensor, sent: Tensor) -> None:
        """Store the new residual; the old one is still alive while it is made."""
        self.stored[name] = [compensated - sent]

    def average(self, parameter: nn.Parameter, messages: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Average the messages: make each dense, then form their sum, then the quotient."""
        dense = [_dense(parameter, values, places) for values, places in messages]
        total = dense[0]
        for other in dense[1:]:
            total = total + other
        return total / dist.get_world_size()

    def synchronise(self) -> None:
        """Exchange messages, and replace gradients by averages."""
        for name, parameter in self.parameters.items():
            parameter.grad = self.average(parameter, _gather(*self._sent.pop(name)))


class Released(Form):
    """The paper's form: one averaged residual per group, a quarter of the largest, averages by one dense tensor."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], grouping: Grouping):
        super().__init__(model, parameters)
        self.group = {name: group for group in grouping.groups for name in group}
        self.specific, self._seen = grouping.specific, dict[str, int]()
        self._running: dict[str, tuple[Tensor, Tensor]] = {}

    def compensate(self, name: str, gradient: Tensor) -> Tensor:
        """Add the residual, in place where a quarter is stored; a member uses its group's residual."""
        if name in self.specific:
            if name in self.stored:
                block, rows, columns = self.stored[name]
                gradient[rows[:, None], columns] += block
            return gradient
        return super().compensate(self.group.get(name, (name,))[0], gradient)

    def update(self, name: str, compensated: Tensor, sent: Tensor) -> None:
        """Store the residual, chosen or weighted by its norms; a group's running sum lives from first to last."""
        residual = compensated - sent
        if name in self.specific:
            norms = (residual.abs().sum(dim=dim) for dim in (1, 0))
            rows, columns = (one.topk(one.numel() // 2).indices for one in norms)
            self.stored[name] = [residual[rows][:, columns], rows, columns]
        elif name in self.group:
            self._add(self.group[name][0], residual, len(self.group[name]))
        else:
            self.stored[name] = [residual]

    def average(self, parameter: nn.Parameter, messages: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Average the messages: add all to zeros at once, out of place, then form the quotient."""
        values, places = (torch.cat(parts) for parts in zip(*messages, strict=True))
        total = torch.zeros(parameter.numel()).scatter_add(0, places, values)
        return (total / dist.get_world_size()).view_as(parameter)

    def _add(self, key: str, residual: Tensor, members: int) -> None:
        weight = 0.5 * residual.abs().mean() + 0.5 * residual.norm() / residual.numel() ** 0.5
        term = residual * weight
        if key in self._running:
            total, weights = self._running[key]
            self._running[key] = total + term, weights + weight
        else:
            self._running[key] = term, weight
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] == members:
            total, weights = self._running.pop(key)
            self.stored[key], self._seen[key] = [total / weights], 0


def _top(x: Tensor) -> tuple[Tensor, Tensor]:
    flat = x.flatten()
    places = flat.abs().topk(max(1, int(DENSITY * flat.numel())), sorted=False).indices
    return flat[places], places


def _dense(like: Tensor, values: Tensor, places: Tensor) -> Tensor:
    return torch.zeros(like.numel()).scatter_(0, places, values).view_as(like)


def _gather(values: Tensor, places: Tensor) -> list[tuple[Tensor, Tensor]]:
    ranks = range(dist.get_world_size())
    every = [torch.empty_like(values) for _ in ranks], [torch.empty_like(places) for _ in ranks]
    dist.all_gather(every[0], values)
    dist.all_gather(every[1], places)
    return list(zip(*every, strict=True))


def grace(model: nn.Module) -> Loop:
    """Set up GRACE's form, and SGD."""
    return _loop(model, Form(model, compressible(model)))


def released(model: nn.Module) -> Loop:
    """Set up the paper's form with the groups that the library finds, and SGD."""
    return _loop(model, Released(model, compressible(model), find_groups(model)))


def _loop(model: nn.Module, form: Form) -> Loop:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        form.synchronise()
        optimizer.step()

    def held() -> dict[str, list[Tensor]]:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        residuals = [tensor for tensors in form.stored.values() for tensor in tensors]
        return {"parameters": list(model.parameters()), "gradients": gradients, "residuals": residuals}

    def follow() -> LiveBytes:
        now = [tensor for tensors in held().values() for tensor in tensors]
        return LiveBytes(counted_states(model.parameters(), __name__), now)

    return Loop(model, step, optimizer.zero_grad, held, follow)
