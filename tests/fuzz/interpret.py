"""Runs a program on one rank, by the library or by the oracle."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.fuzz.build import TOKENS, Built, build_optimizer
from tests.fuzz.programs import Program, Step

BATCH = 4


class Interpreter:
    """One rank. `distribute(model, optimizer, **options)` is the library's or the oracle's."""

    def __init__(self, program: Program, rank: int, start: Built, distribute: Callable[..., Any]):
        self.program, self.rank, self._distribute = program, rank, distribute
        self.model = copy.deepcopy(start)
        self.model.rank = rank
        self.trained = {parameter for parameter in self.model.parameters() if parameter.requires_grad}
        self.plain = build_optimizer(program, self.model.parameters())
        self.first_rate = self.plain.param_groups[0]["lr"]
        self.seen: list[Tensor] = []
        self.passes = self._passes()
        self.optimizer = self._distributed()
        self.scheduler = self._scheduler()

    def run(self) -> list[Any]:
        """The model, and what was seen of it on the way."""
        for number, step in enumerate(self.program.steps):
            self.model.step = number
            self._freeze(step, False)
            self._step(number, step)
            self._freeze(step, True)
            self._after(number, step)
        return [self.model, self.seen]

    def _passes(self) -> list[int]:
        """Of each step; where they are announced, those of the first for all, as is told to distribute()."""
        passes = [step.passes for step in self.program.steps]
        return [passes[0]] * len(passes) if self.program.accumulation == "announced" else passes

    def _distributed(self) -> Any:
        announced = self.passes[0] if self.program.accumulation == "announced" else 1
        return self._distribute(
            self.model, self.plain, scheme="baseline", compressor=self.program.compressor,
            density=self.program.density, max_grad_norm=self.program.max_grad_norm,
            warm_up_steps=self.program.warm_up_steps, backward_passes_per_step=announced,
        )  # fmt: skip

    def _scheduler(self) -> Any:
        if self.program.scheduler == "step":
            return lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        if self.program.scheduler == "cycle":
            return lr_scheduler.LambdaLR(self.plain, lambda step: (0.0, 1.0, 0.3)[step % 3])
        return None

    def _freeze(self, step: Step, trains: bool) -> None:
        """Switch the gradients of a layer, but of what is never trained."""
        if step.frozen is not None and step.frozen < len(self.model.layers):
            for parameter in self.model.layers[step.frozen].parameters():
                if parameter in self.trained:
                    parameter.requires_grad_(trains)

    def _step(self, number: int, step: Step) -> None:
        if step.how == "closure" and step.idle is None:
            self.optimizer.step(lambda: self._gradients(number, step))
        else:
            if step.how != "nothing" and step.idle != self.rank:
                self._gradients(number, step)
            self._between(step)
            self.optimizer.step()
        if self.program.max_grad_norm is not None and self.optimizer.grad_norm is not None:
            self.seen.append(self.optimizer.grad_norm.clone())

    def _gradients(self, number: int, step: Step) -> Tensor:
        self._zero("before")
        wanted = [p for p in self.model.parameters() if p.requires_grad]
        part = wanted[: len(wanted) // 2]
        if step.how == "by_hand":
            part = wanted
        passes = 1 if step.how in ("by_hand", "part_by_hand", "inputs") else self.passes[number]
        for index in range(passes):
            loss = self._loss(10 * number + index) / passes
            if step.how in ("by_hand", "part_by_hand"):
                self._by_hand(loss, part)
            if step.how == "part_by_hand":
                loss = self._loss(10 * number + index)
            with nullcontext() if self._is_last(index, passes) else self.optimizer.no_sync():
                if step.how in ("inputs", "part_by_hand"):
                    self._backward_to(loss, wanted[len(wanted) // 2 :])
                elif step.how != "by_hand":
                    loss.backward()
        return loss.detach()

    def _is_last(self, index: int, passes: int) -> bool:
        return index == passes - 1 or self.program.accumulation == "announced"

    def _backward_to(self, loss: Tensor, inputs: list[nn.Parameter]) -> None:
        """Passes that are announced must be that many: the rest of them are empty."""
        if inputs:
            loss.backward(inputs=inputs)

    def _by_hand(self, loss: Tensor, inputs: list[nn.Parameter]) -> None:
        """Of what this rank uses."""
        if not inputs:
            return
        for parameter, grad in zip(inputs, torch.autograd.grad(loss, inputs, allow_unused=True), strict=True):
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def _between(self, step: Step) -> None:
        if step.norms_logged:
            with torch.no_grad():
                self.seen += [p.norm() for p in self.model.parameters()]
        if step.rate is not None:
            self.plain.param_groups[0]["lr"] = step.rate * self.first_rate
        if self.scheduler is not None and self.program.scheduler_first:
            self.scheduler.step()

    def _after(self, number: int, step: Step) -> None:
        if self.scheduler is not None and not self.program.scheduler_first:
            self.scheduler.step()
        self._zero("after")
        if step.shrunk:
            for parameter in self.model.parameters():
                parameter.data.mul_(0.98)
        if self.program.saved_after == number:
            self.model.load_state_dict(copy.deepcopy(self.model.state_dict()))
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        if self.program.redistributed_after == number:
            self.optimizer.close()
            self.optimizer = self._distributed()

    def _zero(self, when: str) -> None:
        how = self.program.zero_grad
        if how in (when, "twice") or (when == "before" and how in ("zeros", "model")):
            if how in ("model", "twice"):
                self.model.zero_grad()
            if how != "model":
                self.optimizer.zero_grad(set_to_none=how != "zeros")

    def _loss(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.program.seed + 100 * self.rank + number)
        if self.program.model.embedding:
            tokens = torch.randint(TOKENS, (BATCH,), generator=generator)
            return nn.functional.cross_entropy(self.model(tokens), tokens.roll(1))
        x = torch.randn(BATCH, 30, generator=generator, dtype=torch.float64)
        return nn.functional.cross_entropy(self.model(x), torch.randint(7, (BATCH,), generator=generator))
