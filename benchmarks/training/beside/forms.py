"""Error feedback with top-k as in GRACE (Xu et al., ICDCS 2021) and in the paper's released code, tensor by tensor.

These are new implementations of the same computations with the same live tensors; no code is taken from either.
Gradients stay in `.grad`, each is compressed as soon as it is ready, and `step()` averages the payloads of all ranks.
The same tensors are compressed as by the library: not 1-D, of 10,000 elements or more.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.training.beside.builders import Loop
from resireduce.grouping import Grouping, compressible, find_groups
from resireduce.planning.memory import LiveBytes, counted_states

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
