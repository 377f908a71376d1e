"""Optimizers are begun, copied, dropped, closed and made anew."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from resireduce.errors import ConfigError
from tests.habits.script import Refused, Script, habit, with_optimizer


@habit(both=Refused(r"add_param_group.*before resireduce\.distribute"))
def a_group_is_added_later(script: Script) -> nn.Module:
    """add_param_group of the distributed optimizer."""
    model = script.net()
    optimizer = script.distribute(model, torch.optim.SGD(model.blocks.parameters(), 0.1))
    optimizer.add_param_group({"params": list(model.head.parameters())})
    return model


@habit(both=Refused(r"parameters were added to the optimizer.* do that before"))
def a_group_is_added_later_behind_its_back(script: Script) -> nn.Module:
    """add_param_group of the wrapped one."""
    model = script.net()
    plain = torch.optim.SGD(model.blocks.parameters(), 0.1)
    optimizer = script.distribute(model, plain)
    plain.add_param_group({"params": list(model.head.parameters())})
    script.train(model, optimizer, 1)
    return model


@habit()
def a_copy_of_the_model_is_trained_too(script: Script) -> list[nn.Module]:
    """copy.deepcopy(model) is a plain model: it trains by itself, and can be distributed."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 1)
    copied = copy.deepcopy(model)
    alone = torch.optim.SGD(copied.parameters(), 0.1)
    script.train(copied, alone, 1)
    script.train(copied, script.sgd(copied), 2)
    script.train(model, optimizer, 1)
    return [model, copied]


@with_optimizer(both=Refused(r"cannot be copied or pickled; save state_dict"))
def the_optimizer_is_copied(script: Script, model: Any, optimizer: Any) -> None:
    """copy.deepcopy(optimizer), which does as pickle does."""
    copy.deepcopy(optimizer)


@habit(both=Refused(r"is distributed already.*close\(\)", ConfigError))
def distributed_twice(script: Script) -> nn.Module:
    """The second call would compress gradients twice; a name is bound anew while the old optimizer lives."""
    model = script.net()
    optimizer = script.sgd(model)
    optimizer = script.sgd(model)
    script.train(model, optimizer)
    return model


@habit()
def the_optimizer_is_dropped_and_another_made(script: Script) -> nn.Module:
    """`del optimizer`: its hooks go with it."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 2)
    if not script.library:
        optimizer.close()
    del optimizer
    script.train(model, script.distribute(model, torch.optim.AdamW(model.parameters(), 1e-3), density=0.2), 2)
    return model


@habit(streamed=Refused(r"step\(\) was called by itself"), kept=Refused(r"step\(\) was called by itself"))
def the_wrapped_optimizer_steps(script: Script) -> nn.Module:
    """Its step() is called by its old name: gradients of this rank alone would be applied."""
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = script.distribute(model, plain)
    optimizer.zero_grad()
    script.loss(model, 0).backward()
    plain.step()
    return model


@with_optimizer(streamed=Refused(r"max_local_grad_norm", ConfigError), settings={"max_local_grad_norm": 0.05})
def local_gradients_are_clipped(script: Script, model: Any, optimizer: Any) -> None:
    """max_local_grad_norm: kept only."""
    script.train(model, optimizer)


IN_BACKWARD = {"compressor": "none", "scheme": "none", "update": "in_backward"}
NOT_KEPT = Refused(r"update", ConfigError)


@with_optimizer(kept=NOT_KEPT, wrapped=partial(torch.optim.AdamW, lr=1e-3), settings=IN_BACKWARD)
def updates_within_the_backward_pass(script: Script, model: Any, optimizer: Any) -> None:
    """update="in_backward", without compression."""
    script.train(model, optimizer, 4)
