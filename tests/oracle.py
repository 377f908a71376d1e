"""What training on several ranks with error feedback must come to: plain torch, and none of the library's code.

A rank is a thread that runs an ordinary script with an ordinary model and optimizer. Before that optimizer's `step()`
the ranks meet, and `.grad` becomes the average of what each of them sends. From the definitions: G~ = R + G, the k
elements of largest magnitude are sent, k = max(1, floor(density n)), and R' = G~ without them; what is 1-D or has fewer
than 10,000 elements is averaged as it is.
"""

import copy
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

T = TypeVar("T")


class Ranks:
    """`size` threads that run the same script, and meet where it says so."""

    def __init__(self, size: int):
        self.size = size
        self._barrier = threading.Barrier(size, timeout=300)
        self._brought: list[Any] = [None] * size

    def run(self, work: Callable[[int], T]) -> list[T]:
        """What `work(rank)` returns on each; the first error of one is raised."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._guarded, work, rank) for rank in range(self.size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]

    def meet(self, rank: int, mine: T) -> list[T]:
        """What each rank has brought; none may change it afterwards."""
        self._brought[rank] = mine
        self._barrier.wait()
        brought = list(self._brought)
        self._barrier.wait()
        return brought

    def _guarded(self, work: Callable[[int], T], rank: int) -> T:
        try:
            return work(rank)
        except BaseException:
            self._barrier.abort()
            raise


class Plain:
    """What a script may ask of a distributed optimizer; put into the class of an ordinary one."""

    averaging: "Averaging"

    @property
    def grad_norm(self) -> Tensor | None:
        return self.averaging.norm

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # passes add up in .grad, as ever

    def close(self) -> None:
        self.averaging.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


METHODS = ("no_sync", "close", "__enter__", "__exit__")


class Averaging:
    """Around the step of one rank's optimizer: own gradients, less what is kept back, become averages."""

    def __init__(
        self,
        ranks: Ranks,
        rank: int,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        compressor: str = "topk",
        density: float | Callable[[int], float] = 0.01,
        gradients: str = "streamed",
        max_grad_norm: float | None = None,
        max_local_grad_norm: float | None = None,
        warm_up_steps: int = 0,
    ):
        self.ranks, self.rank, self.compresses = ranks, rank, compressor == "topk"
        self.density = density if callable(density) else lambda _: density
        self.max_norm, self.max_local_norm, self.dense_steps = max_grad_norm, max_local_grad_norm, warm_up_steps
        self.parameters = _trained(model, optimizer)
        large = {name: p for name, p in self.parameters.items() if p.dim() >= 2 and p.numel() >= 10_000}
        self.residuals = {name: torch.zeros(p.shape, dtype=p.dtype) for name, p in large.items()}
        self.steps, self.norm = 0, None
        self._streamed, self._depth = gradients == "streamed", 0
        self._hooks = [optimizer.register_step_pre_hook(self._before_step)]
        self._hooks.append(optimizer.register_step_post_hook(self._after_step))
        self._drop()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _drop(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _before_step(self, _: Optimizer, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Average; a closure is evaluated before, and the optimizer gets one that knows the loss already."""
        self._depth += 1
        if self._depth > 1:  # a step() that calls its class's runs hooks twice
            return args, named
        closures = [argument for argument in (*args[1:], *named.values()) if callable(argument)]
        for closure in closures:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._average()
        return ((args[0], lambda: loss), {}) if closures else (args, named)

    def _after_step(self, *_: object) -> None:
        """Streamed, nothing is left of gradients after a step."""
        self._depth -= 1
        if self._streamed and self._depth == 0:
            self._drop()

    def _average(self) -> None:
        """Zeros count for a rank that has no gradient; where none has one, there is none."""
        present = [p for p in self.parameters.values() if p.grad is not None]
        if self.max_local_norm is not None:
            for parameter in present:
                parameter.grad = parameter.grad.clone()  # it may be somebody's who goes on using it
            nn.utils.clip_grad_norm_(present, self.max_local_norm)
        sent = {name: self._sent(name, p.grad) for name, p in self.parameters.items() if p.grad is not None}
        everyone = self.ranks.meet(self.rank, sent)
        averaged = []
        for name, parameter in self.parameters.items():
            parts = [one[name] for one in everyone if name in one]
            if not parts:
                continue
            parameter.grad = sum((part / self.ranks.size for part in parts), torch.zeros_like(parameter))
            averaged.append(parameter)
        if self.max_norm is not None:
            self.norm = nn.utils.clip_grad_norm_(averaged, self.max_norm)
        self.steps += 1

    def _sent(self, name: str, grad: Tensor) -> Tensor:
        """What this rank sends of a gradient, dense; the rest stays in its residual."""
        if not self.compresses or name not in self.residuals or self.steps < self.dense_steps:
            return grad.clone()
        compensated = (self.residuals[name] + grad).contiguous()
        count = max(1, math.floor(self.density(self.steps) * grad.numel() + 1e-9))
        largest = compensated.flatten().abs().sort(stable=True).indices[-count:]
        sent = torch.zeros_like(compensated)
        sent.view(-1)[largest] = compensated.flatten()[largest]
        self.residuals[name] = compensated - sent
        return sent


def distribute(ranks: Ranks, rank: int, model: nn.Module, optimizer: Optimizer, **options: Any) -> Any:
    """`optimizer` itself, which averages from now on; parameters, buffers and its state become rank 0's."""
    for name in ("scheme", "backward_passes_per_step", "update"):  # these must change nothing
        options.pop(name, None)
    kind = type(optimizer)
    if not hasattr(optimizer, "averaging"):
        added = {name: value for name, value in vars(Plain).items() if name in ("grad_norm", *METHODS)}
        optimizer.__class__ = type(kind.__name__, (kind,), added)
    state = copy.deepcopy(optimizer.state_dict())
    for mine, first in zip(_tensors(model), ranks.meet(rank, [t.clone() for t in _tensors(model)])[0], strict=True):
        mine.copy_(first)
    first_state = ranks.meet(rank, state)[0]
    if rank and first_state.get("state"):
        optimizer.load_state_dict(copy.deepcopy(first_state))
    optimizer.averaging = Averaging(ranks, rank, model, optimizer, **options)  # type: ignore[attr-defined]
    return optimizer


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from (tensor.detach() for tensor in (*model.parameters(), *model.buffers()))


def _trained(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    return {name: p for name, p in model.named_parameters() if id(p) in held}
