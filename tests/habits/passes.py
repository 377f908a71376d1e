"""What a step consists of: several backward passes or none, passes that fail, and the rate."""

from typing import Any

import torch
from torch import Tensor

from tests.habits.script import Net, Refused, Script, each_step, with_optimizer

SECOND = Refused(r"a second backward\(\).*no_sync.*backward_passes_per_step")


@each_step(streamed=SECOND)
def two_losses_two_backward_calls(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Each loss has a backward() of its own."""
    optimizer.zero_grad()
    script.loss(model, step).backward()
    script.loss(model, 10 + step).backward()
    optimizer.step()


@each_step()
def a_penalty_of_gradients(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """torch.autograd.grad with create_graph=True of the input, within the loss (WGAN-GP)."""
    optimizer.zero_grad()
    x = script.batch(step)[0].requires_grad_()
    out = model(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (out.square().mean() + grad.square().mean()).backward()
    optimizer.step()


@with_optimizer()
def anomaly_mode(script: Script, model: Any, optimizer: Any) -> None:
    """Left on after a search for a NaN."""
    torch.autograd.set_detect_anomaly(True)  # switched off after each test
    script.train(model, optimizer)


@with_optimizer(both=Refused(r"use resireduce\.GradScaler and give it to .*bfloat16"))
def torch_s_own_scaler(script: Script, model: Any, optimizer: Any) -> None:
    """torch.amp.GradScaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(script.loss(model, step)).backward()
        scaler.step(optimizer)
        scaler.update()


class Failing(Net):
    """Fails once in the backward pass, half-way."""

    fails = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.first(x))
        if self.fails:
            x.register_hook(self._fail)
        return self.head(self.blocks[1](x))

    def _fail(self, _: Tensor) -> None:
        self.fails = False
        raise MemoryError("out of memory")


@each_step(streamed=Refused(r"did not come to its end|[Aa]fter a backward pass that failed"), build=Failing)
def a_batch_that_does_not_fit_is_left_out(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """`except MemoryError: continue`, as scripts do that meet long sequences."""
    optimizer.zero_grad()
    try:
        script.loss(model, step).backward()
    except MemoryError:
        return
    optimizer.step()


@each_step()
def two_steps_for_one_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Streamed, nothing is left for the second; kept, it takes what `.grad` holds, as ever."""
    script.train(model, optimizer, range(step, step + 1))
    optimizer.step()
