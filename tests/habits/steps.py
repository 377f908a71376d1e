"""What people do within a step: with gradients, passes and borrowed tensors; rarer things were traps somewhere."""

from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from resireduce.errors import ConfigError, NonFiniteGradient
from tests.habits.script import INPUTS, Net, Refused, Script, before_the_step, each_step, habit, with_optimizer

STREAMED = Refused(r"gradients have been streamed")
DROPPED = Refused(r"(dropped|replaced|changed|zero_grad\(\)).*between backward\(\) and step\(\)|have been streamed")


@before_the_step(streamed=Refused(r"max_grad_norm"))
def clipping_by_the_norm(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """clip_grad_norm_ between backward() and step(): of this rank's own gradient."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@before_the_step()
def parameters_without_gradient_are_listed(script: Script, model: Any, optimizer: Any, step: int) -> int:
    """A check for unused layers: `p.grad is None`."""
    return sum(p.grad is None for p in model.parameters())


@before_the_step(streamed=DROPPED)
def the_model_s_zero_grad_before_the_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """model.zero_grad() in the wrong place: nothing is trained."""
    model.zero_grad()


@before_the_step(streamed=STREAMED)
def gradients_are_scaled_in_place(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """p.grad.mul_(0.5), or div_ by a number of tokens."""
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


@before_the_step(streamed=DROPPED)
def gradients_are_replaced_after_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """p.grad = other, a tensor from elsewhere."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * (0.1 + script.rank)


@with_optimizer(both=Refused(r"holds NaN or infinity", NonFiniteGradient))
def a_gradient_of_one_rank_is_nan(script: Script, model: Any, optimizer: Any) -> None:
    """The last rank has a gradient that is NaN, and no rank takes the step."""
    script.train(model, optimizer, 1)
    if script.rank == script.ranks - 1:
        model.blocks[1].wide.weight.register_hook(lambda grad: grad * torch.nan)
    script.train(model, optimizer, 1)


@habit()
def hooks_on_parameters(script: Script) -> nn.Module:
    """register_hook to scale a layer's gradient, before and after the model is distributed."""
    model = script.net()
    model.blocks[0].wide.weight.register_hook(lambda grad: grad * 0.1)
    optimizer = script.sgd(model)
    model.head.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    script.train(model, optimizer)
    return model


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)  # type: ignore[union-attr]


@habit()
def hooks_after_accumulation_from_before(script: Script) -> nn.Module:
    """register_post_accumulate_grad_hook before the model is distributed: the gradient is still there."""
    model = script.net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.train(model, script.sgd(model))
    return model


@with_optimizer(streamed=STREAMED)
def hooks_after_accumulation_from_later(script: Script, model: Any, optimizer: Any) -> None:
    """A hook is registered after the model is distributed: a streamed gradient has gone when it runs."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)
    script.train(model, optimizer)


@with_optimizer(streamed=Refused(r"zero_grad\(\) between backward\(\) and step\(\)"))
def zero_grad_before_the_step(script: Script, model: Any, optimizer: Any) -> None:
    """In the wrong place: in plain torch nothing is trained."""
    for step in range(2):
        script.loss(model, step).backward()
        optimizer.zero_grad()
        optimizer.step()
    script.train(model, optimizer, 2)


@each_step(steps=4, streamed=Refused(r"zero_grad\(\) between backward\(\) and step\(\)|a second backward\(\)"))
def a_batch_is_left_out_after_backward(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """No step where a loss looks odd, on all ranks alike."""
    optimizer.zero_grad()
    script.loss(model, step).backward()
    if step != 1:
        optimizer.step()


@habit()
def a_backward_before_the_model_is_distributed(script: Script) -> nn.Module:
    """A dry run: its gradients are not taken for the first step's."""
    model = script.net()
    script.loss(model, 50).backward()
    script.train(model, script.sgd(model))
    return model


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


def borrowed(script: Script, **options: object) -> list[object]:
    """Directions that are computed once; step() must not write into them."""
    model = script.net()
    optimizer = script.sgd(model, **options)
    directions = torch.autograd.grad(script.loss(model, 0), list(model.parameters()))
    before = [direction.clone() for direction in directions]
    for _ in range(3):
        for parameter, direction in zip(model.parameters(), directions, strict=True):
            parameter.grad = direction
        optimizer.step()
        optimizer.zero_grad()
    return [model, [torch.equal(a, b) for a, b in zip(directions, before, strict=True)]]


@habit()
def the_same_tensors_are_the_gradients_of_every_step_without_compression(script: Script) -> list[object]:
    """The same, where what is sent is the gradient itself."""
    return borrowed(script, compressor="none")


@habit(streamed=Refused(r"max_local_grad_norm", ConfigError))
def the_same_tensors_are_the_gradients_of_every_step_and_clipped(script: Script) -> list[object]:
    """Each rank's own are clipped, in the library; by both norms."""
    return borrowed(script, max_local_grad_norm=0.05, max_grad_norm=0.01)


class Twins(Net):
    """Two layers of one shape, which get one gradient, and a third."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Linear(100, 100)


def twins(script: Script, **options: object) -> nn.Module:
    model = script.net()
    optimizer = script.sgd(model, **options)
    pairs = ((model.twin.weight, model.blocks[0].wide.weight), (model.twin.bias, model.blocks[0].wide.bias))
    for step in range(3):
        optimizer.zero_grad()
        grads = torch.autograd.grad(script.loss(model, step), [second for _, second in pairs])
        for (first, second), grad in zip(pairs, grads, strict=True):
            first.grad = second.grad = grad
        optimizer.step()
    return model


@habit(build=Twins)
def one_tensor_is_the_gradient_of_two_without_compression(script: Script) -> nn.Module:
    """The same, where what is sent is the gradient itself."""
    return twins(script, compressor="none")


@each_step(settings={"compressor": "none"})
def a_gradient_by_hand_is_expanded(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """A scalar in the form of the parameter: small ones, and without compression, since all is equal."""
    optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.grad = torch.tensor(0.01 * (step + script.rank)).expand(parameter.shape)
    optimizer.step()


@with_optimizer(wrapped=partial(torch.optim.AdamW, lr=1e-3))
def the_state_is_reset(script: Script, model: Any, optimizer: Any) -> None:
    """`optimizer.state = defaultdict(dict)`, a known way to forget momentum."""
    script.train(model, optimizer, 2)
    optimizer.state = defaultdict(dict)
    script.train(model, optimizer, 2)


@before_the_step(steps=4)
def a_layer_is_frozen_between_backward_and_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """A layer that is frozen once it has a gradient is still updated in that step, as in plain torch."""
    model.blocks[0].requires_grad_(step >= 2)


@each_step(build=lambda: Net().double(), rounded=("streamed",))
def step_without_a_pass_that_sends(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """All passes lie within no_sync(), and step() is called all the same."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        script.loss(model, 2 * step).backward()
        script.loss(model, 2 * step + 1).backward()
    optimizer.step()


@each_step(build=lambda: Net().double(), rounded=("streamed",))
def ranks_add_up_different_numbers_of_passes(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The last rank has fewer batches left."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        for part in range(2 - script.rank):
            script.loss(model, 3 * step + part).backward()
    script.loss(model, 3 * step + 2).backward()
    optimizer.step()


@with_optimizer()
def the_head_is_replaced(script: Script, model: Any, optimizer: Any) -> None:
    """A new layer that the optimizer does not know is not trained, as in plain torch; the old one has no gradient."""
    script.train(model, optimizer, 2)
    new = nn.Linear(100, 5)
    with torch.no_grad():
        new.weight.copy_(model.head.weight * 2)
        new.bias.zero_()
    model.head = new
    script.train(model, optimizer, 2)


@before_the_step()
def parameters_are_changed_between_backward_and_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Decay by hand, or a projection: in place, under no_grad."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.99)


@with_optimizer(ranks=(1,))
def a_compiled_step(script: Script, model: Any, optimizer: Any) -> None:
    """torch.compile of a function that calls optimizer.step()."""
    # torch's own optimizer, compiled, rounds in another way before torch 2.13.
    compiled = torch.compile(optimizer.step, backend="eager") if script.library else optimizer.step
    for step in range(3):
        optimizer.zero_grad()
        script.loss(model, step).backward()
        compiled()


class Pictures(nn.Module):
    """A convolution whose memory lies channels last, and a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(INPUTS, 32, 3, padding=1).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter((torch.randn(288, 40) / 10).t())
        self.small = nn.Parameter((torch.randn(288, 5) / 10).t())

    def forward(self, x: Tensor) -> Tensor:
        x = self.image(x[:, :, None, None].expand(-1, -1, 3, 3)).flatten(1)
        return torch.tanh(x @ self.turned.t()) @ torch.ones(40, 5) + x @ self.small.t()


@with_optimizer(build=Pictures, wrapped=partial(torch.optim.AdamW, lr=1e-2, fused=True))
def memory_that_lies_channels_last_in_a_fused_optimizer(script: Script, model: Any, optimizer: Any) -> None:
    """With one that goes through their memory: an average must lie as its parameter does."""
    script.train(model, optimizer)


class Maybe(torch.autograd.Function):
    """A product whose weight has no gradient, not even zeros, where it is not used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_used: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_used = is_used
        return x @ weight if is_used else x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (grad @ weight.t(), x.t() @ grad, None) if ctx.is_used else (grad, None, None)


class Skipping(Net):
    """Net with a matrix that some passes do not use."""

    uses = True

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.eye(100) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(Maybe.apply(self.first(x), self.extra, self.uses)))


@each_step(steps=4, build=lambda: Skipping().double(), rounded=("streamed",))
def a_function_returns_no_gradient_in_some_pass(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """In the first, the last, both or none of two passes."""
    optimizer.zero_grad()
    model.uses = step % 2 == 0
    with optimizer.no_sync():
        script.loss(model, 2 * step).backward()
    model.uses = step % 3 == 0
    script.loss(model, 2 * step + 1).backward()
    optimizer.step()


@each_step()
def gradients_are_never_cleared(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """The average of the last step is added to, where it is kept, as the gradient is in plain training."""
    script.loss(model, step).backward()
    optimizer.step()


@each_step()
def gradients_are_cleared_to_zero(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """zero_grad(set_to_none=False)."""
    optimizer.zero_grad(set_to_none=False)
    script.loss(model, step).backward()
    optimizer.step()


@each_step(build=lambda: Net().double(), rounded=("streamed",))
def the_model_is_converted_and_converted_back(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Between two steps, of which each has two passes."""
    model.bfloat16().double()
    optimizer.zero_grad()
    with optimizer.no_sync():
        script.loss(model, step).backward()
    script.loss(model, step + 5).backward()
    optimizer.step()


@with_optimizer()
def a_vector_of_which_autograd_makes_gradients(script: Script, model: Any, optimizer: Any) -> Tensor:
    """It is the script's own, and goes on being used where gradients are streamed; kept averages would lie in it."""
    vector = torch.full((sum(one.numel() for one in model.parameters()),), 1e-3 * (1 + script.rank))
    for step in range(3):
        optimizer.zero_grad()
        vector += torch.linspace(0, 1e-3 * step, len(vector))
        given = vector if script.gradients == "streamed" else vector.clone()
        nn.utils.parameters_to_vector(model.parameters()).backward(given)
        optimizer.step()
    return vector


IN_BACKWARD = {"compressor": "none", "scheme": "none", "update": "in_backward"}


@each_step(kept=Refused(r"update", ConfigError), settings=IN_BACKWARD)
def a_gradient_by_hand_where_others_are_updated_in_the_backward_pass(
    script: Script, model: Any, optimizer: Any, step: int
) -> None:
    """It is averaged all the same."""
    model.zero_grad()
    model.first.weight.grad = torch.full_like(model.first.weight, 1.0 + 2 * script.rank)
    model.head(model.blocks(torch.ones(2, 100))).square().mean().backward()
    optimizer.step()


class Odd(Net):
    """Net with a layer that only the second rank uses, in the first step."""

    uses = False

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Linear(100, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(self.blocks(self.odd(x) if self.uses else x))


@each_step(steps=4, build=Odd, wrapped=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1))
def ranks_clear_gradients_in_other_ways(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """What one rank has no gradient of, and the other zeros, drives them not apart."""
    model.uses = step == 0 and script.rank == 1
    optimizer.zero_grad(set_to_none=script.rank == 0)
    script.loss(model, step).backward()
    optimizer.step()


@with_optimizer(streamed=Refused(r"left over at the end of an epoch: gradients='kept'"))
def a_pass_is_left_over_at_the_end_of_an_epoch(script: Script, model: Any, optimizer: Any) -> None:
    """Streamed, it is in residuals by then."""
    with optimizer.no_sync():
        script.loss(model, 0).backward()
    script.train(model, optimizer)


@with_optimizer(streamed=Refused(r"'\S+' was replaced, or dropped .* between two backward passes"))
def gradients_are_dropped_between_two_passes(script: Script, model: Any, optimizer: Any) -> None:
    """model.zero_grad() drops the gradient of a layer that the second pass does not use."""
    with optimizer.no_sync():
        script.loss(model, 0).backward()
    model.zero_grad()
    model.head(torch.ones(2, 100)).square().sum().backward()
    optimizer.step()


@with_optimizer(
    both=Refused(r"'odd\.weight' had a gradient on some ranks and none on others"),
    build=Odd,
    ranks=(2,),
    wrapped=partial(torch.optim.SGD, lr=0.1),
    settings={"compressor": "dgc-momentum"},
)
def a_layer_that_some_ranks_use_beside_momentum_that_is_corrected(script: Script, model: Any, optimizer: Any) -> None:
    """Its velocity would not be averaged."""
    model.uses = script.rank == 1
    script.train(model, optimizer, 1)


class Checkpointed(nn.Module):
    """A block whose activations are computed again in the backward pass."""

    def __init__(self, block: nn.Module, reentrant: bool):
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@habit()
def blocks_are_computed_again_in_the_backward_pass(script: Script) -> nn.Module:
    """By reentrant checkpoints, and by others."""
    model = script.net()
    model.blocks = nn.Sequential(*(Checkpointed(block, not number) for number, block in enumerate(model.blocks)))
    script.train(model, script.sgd(model))
    return model


@with_optimizer(ranks=(1,))
def the_whole_model_is_compiled(script: Script, model: Any, optimizer: Any) -> None:
    """All gradients come at once."""
    torch.compiler.reset()
    model.compile(backend="aot_eager")
    script.train(model, optimizer)


@each_step()
def the_loss_is_computed_in_mixed_precision(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """torch.autocast around the forward pass."""
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = script.loss(model, step)
    loss.backward()
    optimizer.step()


@each_step(build=lambda: Net().double(), rounded=("streamed",))
def no_sync_within_no_sync(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """What lies in `.grad` may be looked at still within the outer one."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        with optimizer.no_sync():
            script.loss(model, 3 * step).backward()
        script.loss(model, 3 * step + 1).backward()
        model.head.bias.grad.norm()
    script.loss(model, 3 * step + 2).backward()
    optimizer.step()


@before_the_step()
def the_model_is_moved_to_where_it_is_before_the_step(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Gradients that have been streamed go with it."""
    model.cpu().to("cpu").to(torch.float32)


@before_the_step(streamed=STREAMED)
def a_norm_is_logged_elsewhere(script: Script, model: Any, optimizer: Any, step: int) -> Tensor:
    """.grad.cpu() is a guard, too."""
    return model.head.weight.grad.cpu().norm()


LAID = Refused(r"was in \.grad before backward\(\).*gradients='kept'")


def lay(parameter: Tensor) -> None:
    """A view of a buffer of zeros in `.grad`."""
    parameter.grad = torch.zeros(2, *parameter.shape)[1]


@each_step(streamed=LAID)
def gradients_are_laid_before_the_backward_pass(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """Of all parameters, again after a step."""
    optimizer.zero_grad()
    for parameter in model.parameters() if step else ():
        lay(parameter)
    script.loss(model, step).backward()
    optimizer.step()


@each_step(streamed=LAID, settings={"compressor": "none"})
def the_first_gradient_is_laid_before_the_backward_pass(script: Script, model: Any, optimizer: Any, step: int) -> None:
    """That of the parameter which autograd reaches first."""
    optimizer.zero_grad()
    lay(model.head.bias)
    script.loss(model, step).backward()
    optimizer.step()
