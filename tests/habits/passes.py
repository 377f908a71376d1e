"""Several backward passes: losses, accumulation, graphs that are kept, checkpoints."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.habits.script import Net, Refused, Script, each_step, with_optimizer


class Wide(Net):
    """In float64: which element is the largest does not depend on the order of sums."""

    def __init__(self) -> None:
        super().__init__()
        self.double()


SECOND = Refused(r"a second backward\(\).*no_sync.*backward_passes_per_step")


@each_step(streamed=SECOND)
def two_losses_two_backward_calls(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Each loss has a backward() of its own."""
    optimizer.zero_grad()
    script.loss(model, step).backward()
    script.loss(model, 10 + step).backward()
    optimizer.step()


@each_step(streamed=SECOND)
def backward_twice_through_one_graph(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """retain_graph=True."""
    optimizer.zero_grad()
    loss = script.loss(model, step)
    loss.backward(retain_graph=True)
    (loss * 2).backward()
    optimizer.step()


@each_step()
def losses_added_up(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """One backward() of a sum."""
    optimizer.zero_grad()
    (script.loss(model, step) + 0.5 * script.loss(model, 10 + step)).backward()
    optimizer.step()


@each_step(rounded=("streamed",), build=Wide)
def accumulation_within_no_sync(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Three small batches for one step."""
    optimizer.zero_grad()
    for part in range(3):
        with optimizer.no_sync() if part < 2 else nullcontext():
            (script.loss(model, 3 * step + part) / 3).backward()
    optimizer.step()


@each_step(rounded=("streamed",), build=Wide, settings={"backward_passes_per_step": 2})
def accumulation_that_is_announced(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """backward_passes_per_step."""
    optimizer.zero_grad()
    for part in range(2):
        (script.loss(model, 2 * step + part) / 2).backward()
    optimizer.step()


@each_step(steps=6, streamed=SECOND)
def accumulation_without_a_word(script: Script, model: Any, optimizer: Any, i: int) -> None:
    """`if (i + 1) % 2 == 0: optimizer.step(); optimizer.zero_grad()`."""
    (script.loss(model, i) / 2).backward()
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()


@with_optimizer(rounded=("streamed",), build=Wide)
def the_last_batches_are_fewer(script: Script, model: Any, optimizer: Any) -> None:
    """The epoch ends in the middle of an accumulation, and step() is called all the same."""
    for batches in (2, 2, 1):
        optimizer.zero_grad()
        for part in range(batches):
            with optimizer.no_sync() if part < batches - 1 else nullcontext():
                script.loss(model, part).backward()
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


@each_step()
def a_graph_of_the_gradient(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """backward(create_graph=True), of which torch warns."""
    optimizer.zero_grad()
    script.loss(model, step).backward(create_graph=True)
    optimizer.step()


def checkpointed(script: Script, model: Any, optimizer: Any, step: int, *, reentrant: bool) -> None:
    def forward(x: Tensor) -> Tensor:
        x = model.first(x)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=False)
        return model.head(x)

    optimizer.zero_grad()
    script.loss(forward, step).backward()
    optimizer.step()


@each_step()
def activation_checkpointing(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """use_reentrant=False."""
    checkpointed(script, model, optimizer, step, reentrant=False)


@each_step()
def activation_checkpointing_of_old(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """use_reentrant=True: a backward pass within the backward pass."""
    checkpointed(script, model, optimizer, step, reentrant=True)


@with_optimizer()
def anomaly_mode(script: Script, model: Any, optimizer: Any) -> None:
    """Left on after a search for a NaN."""
    torch.autograd.set_detect_anomaly(True)  # switched off after each test
    script.train(model, optimizer)


@each_step(settings={"compressor": "none"})
def autocast_to_bfloat16(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Mixed precision that needs no scaler; without compression, since many values are equal in 16 bits."""
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = script.loss(model, step)
    loss.backward()
    optimizer.step()


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
