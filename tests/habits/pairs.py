"""Two optimizers: parts of one model, and adversaries."""

import torch
from torch import Tensor, nn

from tests.habits.script import INPUTS, Refused, Script, habit


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


@habit(streamed=Refused(r"requires_grad_\(False\)"), build=Adversaries)
def a_gan_with_one_backward_each(script: Script) -> nn.Module:
    """The generator's backward pass leaves gradients in the discriminator, of which nobody takes a step."""
    game = Game(script)
    for step in range(3):
        game.optimizer_d.zero_grad()
        (game.judge(game.real(step), 1.0) + game.judge(game.fake(step).detach(), 0.0)).backward()
        game.optimizer_d.step()
        game.optimizer_g.zero_grad()
        game.judge(game.fake(step), 1.0).backward()
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
