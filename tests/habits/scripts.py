"""What people do to models and optimizers: copied, frozen, hooked, closed and made anew; and two of them."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from resireduce.errors import ConfigError
from tests.habits.script import INPUTS, Net, Refused, Script, before_the_step, each_step, habit, with_optimizer


@with_optimizer()
def an_average_of_the_weights_by_deepcopy(script: Script, model: Any, optimizer: Any) -> Any:
    """EMA: the copy is made after the model was distributed, once between backward() and step()."""
    average = copy.deepcopy(model)
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        before = copy.deepcopy(model)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
    return [average, before]


@with_optimizer()
def parameters_get_new_memory(script: Script, model: Any, optimizer: Any) -> None:
    """p.data = p.data.clone(), as when parameters are flattened, or offloaded and back."""
    script.train(model, optimizer, 1)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    script.train(model, optimizer, range(1, 3))


@with_optimizer(both=Refused(r"double|float64|dtype"))
def the_model_is_cast_later(script: Script, model: Any, optimizer: Any) -> None:
    """model.double() after it was distributed."""
    script.train(model, optimizer, 1)
    model.double()
    optimizer.zero_grad()
    model(script.batch(1)[0].double()).square().mean().backward()
    optimizer.step()


@each_step()
def the_model_is_moved_to_where_it_is(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """model.to("cpu"), model.float(), model.train() within the loop."""
    model.to("cpu").float().train()
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
def a_hook_before_the_step_that_clips(script: Script) -> nn.Module:
    """Registered after the model was distributed; gradients are the averages by then."""
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = script.distribute(model, plain)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    plain.register_step_pre_hook(clip)
    script.train(model, optimizer)
    return model


@habit()
def hooks_after_the_step_only(script: Script) -> list[object]:
    """Hooks of the distributed and of the wrapped optimizer run once a step, when all parameters are updated."""
    seen: list[object] = []
    model = script.net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    plain.register_step_post_hook(lambda *_: seen.extend(p.norm() for p in model.parameters()))
    optimizer = script.distribute(model, plain)
    optimizer.register_step_post_hook(lambda *_: seen.extend(p.norm() for p in model.parameters()))
    script.train(model, optimizer)
    return [model, seen]


@with_optimizer()
def a_hook_on_every_optimizer(script: Script, model: Any, optimizer: Any) -> Any:
    """register_optimizer_step_post_hook, as profilers do: once a step for the optimizer that updates."""
    counted: list[int] = []
    mine = {id(p) for p in model.parameters()}

    def count(stepped: torch.optim.Optimizer, *_: object) -> None:
        if any(id(p) in mine for group in stepped.param_groups for p in group["params"]):
            counted.append(1)

    handle = register_optimizer_step_post_hook(count)
    script.train(model, optimizer)
    handle.remove()
    return len(counted)


class Averaged(torch.optim.SGD):
    """Two sets of weights, as schedule-free optimizers have, between which train() and eval() change."""

    training, share = True, 1.0

    def train(self) -> None:
        self._scale(1.0 if self.training else 2.0, training=True)

    def halve_share(self) -> None:
        self.share /= 2

    def eval(self) -> None:
        self._scale(0.5 if self.training else 1.0, training=False)

    @torch.no_grad()
    def _scale(self, factor: float, *, training: bool) -> None:
        self.training = training
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(factor)


@habit()
def an_optimizer_with_train_and_eval(script: Script) -> list[object]:
    """optimizer.train() and optimizer.eval() reach the wrapped one, and so does any attribute of its own."""
    model = script.net()
    plain = Averaged(model.parameters(), 0.1)
    optimizer = script.distribute(model, plain)
    losses = []
    for step in range(3):
        optimizer.train()
        optimizer.share = 0.5**step
        optimizer.halve_share()
        script.train(model, optimizer, range(step, step + 1))
        optimizer.eval()
        losses.append(script.loss(model, 100))
    return [model, losses, optimizer.training, plain.share]


ADDED = Refused(r"parameters were added to the optimizer.* do that before")


@habit(both=ADDED)
def a_group_is_added_later(script: Script) -> nn.Module:
    """add_param_group of the distributed optimizer."""
    model = script.net()
    optimizer = script.distribute(model, torch.optim.SGD(model.blocks.parameters(), 0.1))
    optimizer.add_param_group({"params": list(model.head.parameters())})
    script.train(model, optimizer, 1)
    return model


@habit(both=ADDED)
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
    """A script calls step() of the optimizer that it gave away, which would apply gradients of this rank alone."""
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


@each_step(kept=NOT_KEPT, settings=IN_BACKWARD)
def passes_add_up_before_updates_within_the_last(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """What the first pass has left lies in `.grad`, while others are updated."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        script.loss(model, 10 + step).backward()
    script.loss(model, step).backward()
    optimizer.step()


def stack() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 130), *(nn.Linear(130, 130) for _ in range(5)))


@before_the_step(kept=NOT_KEPT, settings=IN_BACKWARD, build=stack)
def what_has_not_been_updated_yet_is_changed(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Before its update, as in plain training."""
    model[0].bias.data = model[0].bias.data * 0.9


@before_the_step(
    kept=NOT_KEPT, settings=IN_BACKWARD, streamed=Refused("a hook before the step was registered.*update='in_step'")
)
def a_hook_is_registered_when_the_backward_pass_has_updated(
    script: Script, model: Any, optimizer: Any, step: int
) -> None:
    """It would see parameters that have changed."""
    optimizer.register_step_pre_hook(lambda *_: None)


@before_the_step(kept=NOT_KEPT, settings=IN_BACKWARD, streamed=Refused(r"state_dict\(\) between backward\(\) and"))
def a_state_is_saved_when_the_backward_pass_has_updated(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Some parameters have taken the step by then and others have not, so the state would be of no step."""
    optimizer.state_dict()


@with_optimizer(both=Refused(r"^wrapped: another optimizer .* distribute the other, and give it what was"))
def the_wrapped_optimizer_is_replaced(script: Script, model: Any, optimizer: Any) -> None:
    """Another one is put in its place."""
    optimizer.wrapped = torch.optim.SGD(model.parameters(), 0.1)


@habit()
def two_optimizers_with_two_rates(script: Script) -> nn.Module:
    """The second steps in every other iteration: its gradients are dropped, or passed over by detaching."""
    model = script.net()
    body = script.distribute(model, torch.optim.SGD(model.blocks.parameters(), 0.1))
    head = script.distribute(model, torch.optim.SGD(model.head.parameters(), 0.1))
    for step in range(4):
        model.head.requires_grad_(step % 2 == 0)
        body.zero_grad()
        head.zero_grad()
        script.loss(model, step).backward()
        body.step()
        if step % 2 == 0:
            head.step()
    return model


class Adversaries(nn.Module):
    """A generator and a discriminator, with tensors that are compressed and tensors that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(INPUTS, 100), nn.Tanh(), nn.Linear(100, 100), nn.Linear(100, 120))
        self.discriminator = nn.Sequential(nn.Linear(120, 100), nn.Tanh(), nn.Linear(100, 100), nn.Linear(100, 1))


class Game:
    """What both sides have in a step."""

    def __init__(self, script: Script):
        self.script = script
        both = script.net()
        self.both, self.g, self.d = both, both.generator, both.discriminator
        self.optimizer_d = script.distribute(self.d, torch.optim.Adam(self.d.parameters(), 1e-3))
        self.optimizer_g = script.distribute(self.g, torch.optim.Adam(self.g.parameters(), 1e-3))

    def real(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(500 * (1 + self.script.rank) + step)
        return torch.randn(6, 120, generator=generator, dtype=self.script.dtype)

    def fake(self, step: int) -> Tensor:
        return self.g(self.script.batch(step)[0])

    def judge(self, x: Tensor, truth: float) -> Tensor:
        score = self.d(x)
        return nn.functional.binary_cross_entropy_with_logits(score, torch.full_like(score, truth))


@habit(streamed=Refused(r"a second backward\(\)"), build=Adversaries)
def a_gan_as_in_the_tutorial(script: Script) -> nn.Module:
    """DCGAN: two backward calls for the discriminator; the generator's reaches it too, and is dropped there."""
    game = Game(script)
    for step in range(3):
        game.d.zero_grad()
        game.judge(game.real(step), 1.0).backward()
        fake = game.fake(step)
        game.judge(fake.detach(), 0.0).backward()
        game.optimizer_d.step()
        game.g.zero_grad()
        game.judge(fake, 1.0).backward()
        game.optimizer_g.step()
    return game.both


@habit(rounded=("streamed",), build=lambda: Adversaries().double())
def a_gan_with_the_cure(script: Script) -> nn.Module:
    """no_sync() for the first of two passes, requires_grad_(False) where the other side is trained."""
    game = Game(script)
    for step in range(3):
        game.d.requires_grad_(True)
        game.optimizer_d.zero_grad()
        with game.optimizer_d.no_sync():
            game.judge(game.real(step), 1.0).backward()
        fake = game.fake(step)
        game.judge(fake.detach(), 0.0).backward()
        game.optimizer_d.step()
        game.d.requires_grad_(False)
        game.optimizer_g.zero_grad()
        game.judge(game.fake(step), 1.0).backward()
        game.optimizer_g.step()
    return game.both


class Sharpness(torch.optim.SGD):
    """Moves the parameters by this rank's own gradients first, as SAM does."""

    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(parameter.grad, alpha=0.1)


@before_the_step(
    ranks=(2,), wrapped=partial(Sharpness, lr=0.1), both=Refused(r"first_step\(\) between backward\(\) and step\(\)")
)
def a_method_that_would_find_gradients_of_one_rank_alone(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Any of the wrapped optimizer's own."""
    optimizer.first_step()


@with_optimizer(streamed=Refused(r"within a backward pass, as by a hook.*update='in_backward'"))
def a_step_in_a_hook_of_the_backward_pass(script: Script, model: Any, optimizer: Any) -> None:
    """Other gradients are to come."""
    model.blocks[0].small.bias.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    script.loss(model, 0).backward()


@with_optimizer(
    both=Refused(r"corrects momentum .*cycle_momentum=False", ConfigError),
    wrapped=partial(torch.optim.SGD, lr=0.1),
    settings={"compressor": "dgc-momentum"},
)
def momentum_comes_later_beside_momentum_that_is_corrected(script: Script, model: Any, optimizer: Any) -> None:
    """By a scheduler."""
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    script.train(model, optimizer, 1)


def tie(model: Any) -> Any:
    """Two parameters in the same memory, without being one."""
    model.blocks[1].wide.weight.data = model.blocks[0].wide.weight.data
    return model


@habit(rounded=("streamed",), build=lambda: Net().double())
def parameters_lie_in_the_same_memory(script: Script) -> nn.Module:
    """Only the order of their two updates may differ."""
    model = tie(script.net())
    script.train(model, script.sgd(model))
    return model


@habit(
    streamed=Refused(r"update: 'in_backward' is not allowed with '\S+' and '\S+', which", ConfigError), kept=NOT_KEPT
)
def parameters_in_the_same_memory_are_updated_within_the_backward_pass(script: Script) -> None:
    """An update of one would change the other before its last use."""
    model = tie(script.net())
    script.sgd(model, **IN_BACKWARD)
