"""Parts of the model that are frozen, unfrozen, or not used."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.habits.script import INPUTS, Net, Refused, Script, each_step, habit, with_optimizer


@with_optimizer()
def a_layer_is_frozen_later(script: Script, model: Any, optimizer: Any) -> None:
    """requires_grad_(False) after two steps; momentum and decay leave it alone, as in plain torch."""
    script.train(model, optimizer, 2)
    optimizer.zero_grad()
    model.blocks[0].requires_grad_(False)
    script.train(model, optimizer, range(2, 4))


@each_step(steps=4)
def a_layer_is_frozen_now_and_then(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """requires_grad_ is switched off and on again."""
    model.blocks.requires_grad_(step % 2 == 0)
    script.train(model, optimizer, range(step, step + 1))


@each_step(steps=4)
def a_layer_is_frozen_between_forward_and_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Autograd then leaves its gradient out."""
    optimizer.zero_grad()
    loss = script.loss(model, step)
    model.blocks[0].requires_grad_(step % 2 == 0)
    loss.backward()
    optimizer.step()
    model.requires_grad_(True)


@each_step(steps=4, rounded=("streamed",))
def a_layer_is_frozen_in_the_last_pass(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The same, where passes add up: it has the gradients of the first."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        script.loss(model, step).backward()
    loss = script.loss(model, step + 10)
    model.blocks[0].requires_grad_(step % 2 == 0)
    loss.backward()
    optimizer.step()
    model.requires_grad_(True)


@habit()
def a_hook_from_before_drops_gradients(script: Script) -> nn.Module:
    """A hook that the script has set before `distribute` drops the gradients of the first block on the last rank."""
    model = script.net()

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    for parameter in model.blocks[0].parameters() if script.rank == script.ranks - 1 else ():
        parameter.register_post_accumulate_grad_hook(drop)
    optimizer = script.sgd(model)
    script.train(model, optimizer)
    return model


@habit(both=Refused(r"unfreeze before|close\(\)"))
def a_layer_is_unfrozen_later(script: Script) -> nn.Module:
    """It was frozen when the model was distributed, and the optimizer holds it."""
    model = script.net()
    model.first.requires_grad_(False)
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    model.first.requires_grad_(True)
    script.train(model, optimizer, 1)
    return model


@habit()
def a_layer_is_unfrozen_by_distributing_anew(script: Script) -> nn.Module:
    """The cure: close, unfreeze, distribute again with the same optimizer."""
    model = script.net()
    model.first.requires_grad_(False)
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with script.distribute(model, plain) as optimizer:
        script.train(model, optimizer, 2)
    model.first.requires_grad_(True)
    script.train(model, script.distribute(model, plain), 2)
    return model


@habit()
def a_frozen_backbone(script: Script) -> nn.Module:
    """Fine-tuning of the last block and the head; the optimizer holds all, or what is trained."""
    model = script.net()
    model.first.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    wrapped = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    script.train(model, script.distribute(model, wrapped))
    return model


@each_step(steps=4)
def a_part_that_one_rank_does_not_use(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Rank 0 leaves out a block in every other step."""
    optimizer.zero_grad()
    leaves_out = script.rank == 0 and step % 2 == 1

    def forward(x: Tensor, leaves_out: bool = leaves_out) -> Tensor:
        x = model.blocks[0](model.first(x))
        return model.head(x if leaves_out else model.blocks[1](x))

    script.loss(forward, step).backward()
    optimizer.step()


@each_step(
    build=lambda: nn.ModuleDict({"net": Net(), "unused": nn.Linear(INPUTS, 300)}),
    wrapped=partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
)
def a_part_that_nobody_uses(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """It has no gradient on any rank: decay leaves it alone, as in plain torch."""
    optimizer.zero_grad()
    script.loss(model["net"], step).backward()
    optimizer.step()
