"""Optimizers are saved, copied, dropped, closed and made anew."""

import copy
import pickle
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from resireduce.errors import ConfigError
from tests.habits.script import Refused, Script, habit, with_optimizer
from tests.worlds import reloaded


@habit()
def a_group_is_added_before(script: Script) -> nn.Module:
    """add_param_group of the plain optimizer."""
    model = script.net()
    plain = torch.optim.SGD(model.blocks.parameters(), 0.1, momentum=0.9)
    plain.add_param_group({"params": list(model.head.parameters()), "lr": 0.01})
    script.train(model, script.distribute(model, plain))
    return model


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


@with_optimizer(wrapped=partial(torch.optim.AdamW, lr=1e-3))
def the_optimizer_s_state_is_saved_and_loaded(script: Script, model: Any, optimizer: Any) -> None:
    """In the middle of a run, through a file."""
    script.train(model, optimizer, 2)
    saved = reloaded({"optimizer": optimizer.state_dict(), "model": model.state_dict()})
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    script.train(model, optimizer, range(2, 4))


@habit()
def everything_is_saved_and_a_new_job_goes_on(script: Script) -> nn.Module:
    """Model, optimizer and this rank's residuals, into a model and an optimizer that were made anew."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 2)
    if script.library:
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), optimizer.residual_state_dict()))
        model = script.net()
        optimizer = script.sgd(model)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        optimizer.load_residual_state_dict(saved[2])
    script.train(model, optimizer, range(2, 4))
    return model


@habit()
def the_whole_model_is_pickled(script: Script) -> list[nn.Module]:
    """torch.save(model): what is loaded can be distributed, and the run goes on."""
    model = script.net()
    optimizer = script.sgd(model)
    script.train(model, optimizer, 2)
    loaded = reloaded(model, weights_only=False)
    script.train(model, optimizer, range(2, 3))
    script.train(loaded, script.sgd(loaded), 2)
    return [model, loaded]


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


def _outcome_of_a_copy(script: Script, act: object) -> nn.Module:
    model = script.net()
    act(script.sgd(model))  # type: ignore[operator]
    return model


COPIED = Refused(r"cannot be copied or pickled; save state_dict")


@habit(both=COPIED)
def the_optimizer_is_copied(script: Script) -> nn.Module:
    """copy.deepcopy(optimizer)."""
    return _outcome_of_a_copy(script, copy.deepcopy)


@habit(both=COPIED)
def the_optimizer_is_pickled(script: Script) -> nn.Module:
    """pickle.dumps(optimizer), or torch.save of it as a whole."""
    return _outcome_of_a_copy(script, pickle.dumps)


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


@habit()
def the_optimizer_is_closed_and_another_made(script: Script) -> nn.Module:
    """A second stage with other settings, while the first optimizer is still held."""
    model = script.net()
    first = script.sgd(model)
    script.train(model, first, 2)
    first.close()
    second = script.distribute(model, torch.optim.AdamW(model.parameters(), 1e-3), max_grad_norm=0.05, density=0.2)
    script.train(model, second, 2)
    return model


@habit(drifting=True)
def after_with_the_model_is_plain(script: Script) -> nn.Module:
    """`with resireduce.distribute(...) as optimizer:`, and then a plain loop of this rank alone."""
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with script.distribute(model, plain) as optimizer:
        script.train(model, optimizer, 2)
    script.train(model, plain, 2)
    return model


@with_optimizer(both=Refused(r"clos"))
def a_closed_optimizer_is_used(script: Script, model: Any, optimizer: Any) -> None:
    """step() after close()."""
    optimizer.close()
    script.train(model, optimizer, 1)


@with_optimizer(wrapped=partial(torch.optim.AdamW, lr=1e-3))
def the_state_is_asked_for_by_distributed_checkpoint(script: Script, model: Any, optimizer: Any) -> None:
    """get_optimizer_state_dict; where there is no state it takes a step of rate 0, which counts, as in plain torch."""
    get_optimizer_state_dict(model, optimizer)
    script.train(model, optimizer, 2)
    state = get_optimizer_state_dict(model, optimizer)["state"]
    assert set(state) == {name for name, _ in model.named_parameters()}
    script.train(model, optimizer, range(2, 4))


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
