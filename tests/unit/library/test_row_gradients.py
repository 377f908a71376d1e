"""Gradients of large weights that their layers make row by row, straight into the residual."""

import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalWorld
from resireduce.errors import NonFiniteGradient, UsageError
from resireduce.optimizer import DistributedOptimizer
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes, track_states
from resireduce.slices.row_gradients import ConvolutionRows, EmbeddingRows, LinearRows, SumRows
from tests.worlds import OPTIMIZERS, distributed, same, seeded

SLICE = 8192
LARGE = {"embedding.weight", "up.weight", "down.weight", "second.weight"}


class Toy(nn.Module):
    """Every kind of layer that makes gradients row by row, a tied head, small ones, and ReLU in place after them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(512, 64, padding_idx=3), nn.Linear(64, 512, bias=False)
        self.head.weight = self.embedding.weight
        self.first, self.second = nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 128, 3, stride=2)
        self.up, self.down, self.relu = nn.Linear(64, 256), nn.Linear(256, 64), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.down(self.relu(self.up(self.embedding(x))))
        seen = self.relu(self.second(self.relu(self.first(hidden[:, None]))))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), x.flatten()) + seen.mean()


def tokens(seed: int) -> Tensor:
    return torch.randint(0, 512, (4, 17), generator=torch.Generator().manual_seed(seed))


def toy(communicator: Communicator | str = "local", slices: int | None = SLICE, kind: str = "adamw",
        start: Toy | None = None, **options: object) -> tuple[Toy, DistributedOptimizer]:  # fmt: skip
    model = copy.deepcopy(start) if start else seeded(Toy)
    wrapped = OPTIMIZERS[kind](list(model.parameters()))
    given = {"scheme": "baseline", "density": 0.05, "backend": communicator, "slices": slices, **options}
    return model, resireduce.distribute(model, wrapped, **given)  # type: ignore[arg-type]


def trained(
    communicator: Communicator, start: Toy, slices: int | None, passes: int
) -> tuple[Toy, DistributedOptimizer]:
    model, optimizer = toy(communicator, slices, start=start, backward_passes_per_step=passes)
    for step in range(6):
        optimizer.zero_grad()
        for one in range(passes):
            model(tokens(100 * communicator.rank + 10 * step + one)).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(("world_size", "passes"), [(1, 1), (2, 1), (1, 2)])
def test_training_is_that_of_whole_gradients_but_for_rounding(world_size: int, passes: int) -> None:
    start = seeded(Toy)  # threads share the global generator
    whole, cut = (LocalWorld(world_size).run(lambda c, s=s: trained(c, start, s, passes)) for s in (None, SLICE))
    assert same(cut[0][0], cut[-1][0]), "all ranks have the same"
    for (model, plain), (other, optimizer) in zip(whole, cut, strict=True):
        # Products of fewer rows may add up in another order; what is added to the residual first differs in the tied.
        torch.testing.assert_close(dict(other.named_parameters()), dict(model.named_parameters()), atol=1e-6, rtol=1e-5)
        found, expected = optimizer.residual_state_dict(), plain.residual_state_dict()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        assert optimizer.whole_gradients == {}


def in_rows(gradient: LinearRows | EmbeddingRows | ConvolutionRows, count: int) -> np.ndarray:
    cuts = ((0, 1), (1, 4), (4, count))
    return np.concatenate([gradient.rows(slice(start, stop)).numpy() for start, stop in cuts])


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def test_rows_of_a_linear_layer() -> None:
    inputs, outputs = drawn(5, 7), drawn(5, 9)
    np.testing.assert_allclose(in_rows(LinearRows(inputs, outputs), 9), outputs.numpy().T @ inputs.numpy())


def test_rows_of_an_embedding() -> None:
    indices, outputs = torch.tensor([0, 8, 5, 5, -1, 3, 4]), drawn(7, 6)
    expected = np.zeros((9, 6))
    for index, row in zip(indices.tolist(), outputs.numpy(), strict=True):
        if index >= 0:
            expected[index] += row
    np.testing.assert_allclose(in_rows(EmbeddingRows(indices, outputs, torch.empty_like(indices)), 9), expected)


def test_rows_of_a_convolution() -> None:
    inputs, weight, outputs = drawn(2, 3, 5, 6), drawn(9, 3, 3, 2), drawn(2, 9, 3, 3)
    found = in_rows(ConvolutionRows(inputs, outputs, weight, (2, 2), (1, 0), (1, 1)), 9)
    padded, expected = np.pad(inputs.numpy(), ((0, 0), (0, 0), (1, 1), (0, 0))), np.zeros(weight.shape)
    for row, column in np.ndindex(3, 3):
        window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 2]
        expected += np.einsum("bo,bchw->ochw", outputs.numpy()[:, :, row, column], window)
    np.testing.assert_allclose(found, expected)


def test_rows_are_certain_to_be_finite_only_if_all_that_is_added_up_is() -> None:
    """Ten products of -1 and 1 each: only where these stay below the limit together is no row looked at."""
    ones, images = torch.ones(10, 3), torch.ones(2, 3, 1, 5)
    uses = (
        LinearRows(-ones, ones),
        EmbeddingRows(torch.zeros(10, dtype=torch.long), -ones, torch.zeros(10, dtype=torch.long)),
        ConvolutionRows(-images, images, torch.ones(3, 3, 1, 1), (1, 1), (0, 0), (1, 1)),
    )
    for gradient in uses:
        assert not gradient.stays_below(10.0) and gradient.stays_below(10.5)
    with torch.autocast("cpu", dtype=torch.float16):
        assert not LinearRows(ones, ones).stays_below(1e6), "beyond what float16 reaches nothing is known"
    sums = SumRows([LinearRows(ones, ones)], ones)
    assert not sums.stays_below(1e6)


def test_no_weight_of_a_large_layer_has_a_whole_gradient() -> None:
    alive = {}
    for slices in (None, SLICE):
        model, optimizer = toy(slices=slices, kind="sgd")
        shapes = {p.shape for name, p in model.named_parameters() if name in LARGE}
        held = list(optimizer.feedback.residual.tensors().values())
        with LiveBytes(lambda tensor, s=shapes: tensor.shape in s, [*held, *model.parameters()]) as found:
            before = found.current_bytes
            model(tokens(0)).backward()
            optimizer.step()
        alive[slices] = found.peak_bytes - before
    assert alive[SLICE] == 0 < alive[None]


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_a_plan_is_near_what_is_alive(kind: str) -> None:
    model, optimizer = toy(kind=kind)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(tokens(step))
        with track_states(optimizer) if step == 2 else contextlib.nullcontext() as tracker:
            loss.backward()
            optimizer.step()
    name = "adamw" if kind == "adamw" else "sgd"
    planned, whole = (
        plan(Toy, optimizer=name, scheme="baseline", density=0.05, world_size=1, slices=s) for s in (SLICE, None)
    )
    assert tracker.peak_bytes == pytest.approx(planned["peak_states"], rel=0.02)
    assert planned["peak_states"] < 0.9 * whole["peak_states"] and planned["total"] == whole["total"]
    assert planned["whole_gradients"] == {} and "whole_gradients" not in whole


def test_the_model_stays_what_it_was() -> None:
    model, plain = seeded(Toy), seeded(Toy)
    optimizer = distributed(model, slices=SLICE)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()] and str(model) == str(plain)
    assert model.state_dict().keys() == plain.state_dict().keys()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        loss = other(tokens(0))
        loss.backward()
        assert all(p.grad is not None for p in other.parameters()), "a copy trains plainly, by its own weights"
        assert all(p.grad is None for p in model.parameters())
    assert torch.equal(loss, plain(tokens(0)))
    optimizer.close()
    assert all("forward" not in vars(module) for module in model.modules())
    model(tokens(0)).backward()
    assert all(p.grad is not None for p in model.parameters())


def broken(row: Tensor) -> Tensor:
    """The same values, of which the gradient is infinite in one column."""
    row.register_hook(lambda grad: grad.index_fill(-1, torch.tensor([200]), torch.inf))
    return row


@pytest.mark.parametrize("scaled", [False, True])
def test_a_slice_that_is_not_finite_leaves_the_residual_as_before(scaled: bool) -> None:
    scaler = resireduce.GradScaler("cpu", init_scale=8.0)
    model, optimizer = toy(grad_scaler=scaler if scaled else None)
    handle: list[object] = []
    for step in range(3):
        optimizer.zero_grad()
        held = optimizer.feedback.residual.tensors()["full.up.weight"]
        before, parameters = held.clone(), copy.deepcopy(model)
        if step == 1:
            handle.append(model.up.register_forward_hook(lambda _, __, output: broken(output * 1)))
        loss = model(tokens(step))
        (scaler.scale(loss) if scaled else loss).backward()
        assert torch.equal(optimizer.feedback.residual.tensors()["full.up.weight"], before) == (step == 1)
        if step == 1 and not scaled:
            with pytest.raises(
                NonFiniteGradient, match=r"gradient of .up.weight. holds NaN or infinity; its residual is unchanged"
            ):
                optimizer.step()
            return
        scaler.step(optimizer) if scaled else optimizer.step()
        scaler.update() if scaled else None
        assert same(model, parameters) == (step == 1)
        for one in handle:
            one.remove()  # type: ignore[attr-defined]


def test_gradients_that_are_asked_for_are_those_of_plain_torch() -> None:
    model, _ = toy()
    plain = seeded(Toy)
    for one in (model, plain):
        one.inputs = torch.ones(3, 64, requires_grad=True)  # type: ignore[attr-defined]
    found, expected = [], []
    for one, into in ((model, found), (plain, expected)):
        loss = one.down(one.relu(one.up(one.inputs))).square().mean()
        (slope,) = torch.autograd.grad(loss, one.inputs, create_graph=True)
        (weight,) = torch.autograd.grad(slope.square().sum(), one.up.weight, retain_graph=True)
        into += [slope, weight, torch.autograd.grad(loss, one.down.weight)[0]]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not any(t.any() for t in toy()[1].feedback.residual.tensors().values())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_layer_that_a_checkpoint_runs_again(reentrant: bool) -> None:
    def run(slices: int | None) -> nn.Module:
        model, optimizer = toy(slices=slices, kind="sgd")
        for step in range(2):
            optimizer.zero_grad()
            x = torch.ones(3, 64, requires_grad=True) * (step + 1)
            checkpoint(lambda y: model.down(model.up(y)), x, use_reentrant=reentrant).square().mean().backward()
            optimizer.step()
        return model

    torch.testing.assert_close(dict(run(SLICE).named_parameters()), dict(run(None).named_parameters()))


def test_a_second_backward_is_refused_before_anything_is_added() -> None:
    model, optimizer = toy()
    model(tokens(0)).backward()
    held = {key: tensor.clone() for key, tensor in optimizer.feedback.residual.tensors().items()}
    with pytest.raises(UsageError, match=r"a second backward\(\) reached"):
        model(tokens(1)).backward()
    found = optimizer.feedback.residual.tensors()
    assert all(torch.equal(found[key], tensor) for key, tensor in held.items())


def used_outside(model: Toy) -> Tensor:
    return model(tokens(0)) + (model.up.weight @ torch.ones(64)).mean()


def autocast(model: Toy) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(tokens(0))


def compare_with_whole(loss: Callable[[Toy], Tensor], warning: str) -> tuple[Toy, DistributedOptimizer]:
    """Check that a step with slices warns so, and updates as one without; return its model and optimizer."""
    (model, cut), (other, whole) = toy(kind="sgd"), toy(kind="sgd", slices=None)
    with pytest.warns(UserWarning, match=warning):
        loss(model).backward()
    loss(other).backward()
    cut.step()
    whole.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(other.named_parameters()))
    return model, cut


@pytest.mark.parametrize("loss", [used_outside, autocast])
def test_a_gradient_that_comes_whole_is_right_and_said_to_be_whole(loss: Callable[[Toy], Tensor]) -> None:
    compare_with_whole(loss, "the gradient of '.*' came whole, so that slices save nothing of it")


class Doubled(nn.Linear):
    """A layer that somebody else computes, as a low-rank adapter or quantisation does."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, 2 * self.weight, self.bias)


def doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda input, weight, *others: function(input, 2 * weight, *others)


class Doubling(TorchFunctionMode):
    """Doubles the weights of all linear layers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        linear = func is nn.functional.linear
        return (doubled(func) if linear else func)(*args, **(kwargs or {}))


def in_another_class(model: Toy) -> Tensor:
    model.up.__class__ = Doubled
    return model(tokens(0))


def in_a_class_that_was_changed(model: Toy) -> Tensor:
    with patch.object(nn.Linear, "forward", Doubled.forward):
        return model(tokens(0))


def by_another_function(model: Toy) -> Tensor:
    with patch.object(nn.functional, "linear", doubled(nn.functional.linear)):
        return model(tokens(0))


def by_another_convolution(model: Toy) -> Tensor:
    with patch.object(nn.functional, "conv2d", doubled(torch.conv2d)):
        return model(tokens(0))


def in_a_mode(model: Toy) -> Tensor:
    with Doubling():
        return model(tokens(0))


def by_another_part_of_a_layer(model: Toy) -> Tensor:
    model.second._conv_forward = lambda x, weight, bias: nn.functional.conv2d(x, 2 * weight, bias)  # type: ignore
    return model(tokens(0))


def with_other_options(model: Toy) -> Tensor:
    model.embedding.scale_grad_by_freq = True
    model.second.padding_mode, model.second._reversed_padding_repeated_twice = "circular", [1, 1, 1, 1]
    return model(tokens(0))


def with_an_attribute_that_hides_the_weight(model: Toy) -> Tensor:
    vars(model.up)["weight"] = 2 * model.up.weight
    return model(tokens(0))


OTHERS = [in_another_class, in_a_class_that_was_changed, by_another_function, by_another_convolution, in_a_mode,
          by_another_part_of_a_layer, with_other_options, with_an_attribute_that_hides_the_weight]  # fmt: skip


@pytest.mark.parametrize("loss", OTHERS)
def test_a_layer_that_somebody_else_computes_has_the_gradient_of_that(loss: Callable[[Toy], Tensor]) -> None:
    """Also if that begins when the model has been distributed."""
    model, cut = compare_with_whole(loss, "came whole.* or these have been given another forward")
    cut.close()
    assert "forward" not in vars(model.up)


def patched(model: Toy) -> None:
    model.up.forward = model.up.forward  # type: ignore[method-assign]
    model.down.forward = lambda x: nn.functional.linear(x, model.down.weight)  # type: ignore[method-assign]


class Own(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def replaced(model: Toy) -> None:
    model.down = Own(256, 64)


class Attention(nn.Module):
    """Attention, which uses the weight of a Linear without its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]


class Transformed(nn.Module):
    """A stack of linear layers as those of transformers' GPT-2, with a row for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Conv1D(256, 64), Conv1D(64, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x))).square().mean()


@pytest.mark.parametrize("precision", [None, "int8"])
def test_linear_layers_of_transformers(precision: str | None) -> None:
    def run(slices: int | None) -> tuple[nn.Module, dict[str, str], bool]:
        model = seeded(Transformed)
        optimizer = distributed(model, residual_dtype=precision, slices=slices)
        x = drawn(1, 1, 64).float().requires_grad_()  # of one sample an element is one product
        seen = False
        for _ in range(2):
            optimizer.zero_grad()
            with LiveBytes(lambda tensor: tensor.shape in ((64, 256), (256, 64))) as alive:
                model(x).backward()
            seen = seen or alive.peak_bytes > 0
            optimizer.step()
        return model, optimizer.whole_gradients, seen

    (whole, _, was_seen), (cut, reasons, is_seen) = run(None), run(SLICE)
    assert same(whole, cut) and not reasons and was_seen and not is_seen


def test_a_weight_that_attention_uses_by_itself() -> None:
    model = Attention()
    optimizer = distributed(model, slices=SLICE, dense=[])
    assert set(optimizer.whole_gradients) == {"inner.in_proj_weight", "inner.out_proj.weight"} & {
        slot.name for slot in optimizer.slots if slot.nbytes > SLICE
    }
    model(torch.ones(5, 64)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("scheme", ["baseline", "none"])  # rows once, or twice
def test_weights_that_are_frozen_between_forward_and_backward(scheme: str) -> None:
    """Autograd leaves their gradients out, so that nothing of them is sent or kept."""
    for slices in (SLICE, None):
        model, optimizer = toy(slices=slices, scheme=scheme, kind="sgd")
        weights = [model.embedding.weight, model.up.weight, model.second.weight]
        found = model(tokens(0))
        for weight in weights:
            weight.requires_grad_(False)
        before = [weight.detach().clone() for weight in weights]
        found.backward()
        optimizer.step()
        assert all(torch.equal(weight, was) for weight, was in zip(weights, before, strict=True))
        state = optimizer.residual_state_dict()
        residuals = [state[one] for one in state if one.endswith(("embedding.weight", "up.weight", "second.weight"))]
        assert len(residuals) == (3 if scheme == "baseline" else 0) and not any(one.any() for one in residuals)


def test_a_batch_of_nothing() -> None:
    model, optimizer = toy()
    model.up(torch.ones(0, 5, 64)).sum().backward()
    assert model.up.weight.grad is not None, "a gradient of zeros is under way"
    optimizer.step()
    assert model.embedding(torch.ones(0, 5, dtype=torch.long)).shape == (0, 5, 64)


def test_what_has_been_distributed_is_freed() -> None:
    model, optimizer = toy()
    model(tokens(0)).backward()
    optimizer.step()
    gone = [weakref.ref(one) for one in (optimizer, model.up.weight)]
    del model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_compiled_model_has_whole_gradients() -> None:
    (model, cut), (other, whole) = toy(kind="sgd"), toy(kind="sgd", slices=None)
    with pytest.warns(UserWarning, match="came whole"):
        torch.compile(model, backend="eager")(tokens(0)).backward()
    cut.step()
    other(tokens(0)).backward()
    whole.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(other.named_parameters()))


def hooked(model: Toy) -> None:
    model.down.weight.register_hook(lambda grad: grad * 2)


def grouped(model: Toy) -> None:
    model.second = nn.Conv2d(64, 128, 5, groups=2, stride=2)


def renormalised(model: Toy) -> None:
    model.embedding.max_norm = 1.0


class Quantised(nn.Parameter):
    """A parameter that computes in a way of its own."""


def quantised(model: Toy) -> None:
    model.down.weight = Quantised(model.down.weight.detach())


@pytest.mark.parametrize(
    ("change", "options", "name", "reason"),
    [
        (patched, {}, "down.weight", "a forward has been put into its Linear"),
        (replaced, {}, "down.weight", "Own.weight is no weight of nn.Linear, nn.Embedding or nn.Conv2d"),
        (hooked, {}, "down.weight", "a hook is registered for it"),
        (grouped, {}, "second.weight", "its Conv2d has groups"),
        (renormalised, {}, "embedding.weight", "its Embedding has max_norm"),
        (quantised, {}, "down.weight", "it is a Quantised and no plain nn.Parameter"),
        (lambda model: None, {"dense": ["down.*"]}, "down.weight", "it is sent without compression"),
    ],
)
def test_why_a_gradient_is_made_whole(
    change: Callable[[Toy], None], options: dict[str, object], name: str, reason: str
) -> None:
    model = seeded(Toy)
    change(model)
    optimizer = distributed(model, slices=SLICE, **options)
    assert reason in optimizer.whole_gradients[name]
    if not options:
        assert len(optimizer.whole_gradients) == 1, "others are made row by row"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.functional.cross_entropy(model.head(model.down(model.up(model.embedding(tokens(0))))).flatten(0, 1),
                                    tokens(0).flatten()).backward()  # fmt: skip
    optimizer.step()


def test_a_hook_that_is_registered_later_gets_the_whole_gradient() -> None:
    model, optimizer = toy()
    seen: list[torch.Size] = []
    model.down.weight.register_hook(lambda grad: seen.append(grad.shape))
    with pytest.warns(UserWarning, match="came whole"):
        model(tokens(0)).backward()
    assert seen == [model.down.weight.shape]
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"residual_dtype": "int8"}, {"scheme": "none"}])
def test_weights_that_lie_otherwise_later_have_whole_gradients(options: dict[str, object]) -> None:
    """As after `model.to(memory_format=torch.channels_last)`."""
    models = [toy(slices=size, **options) for size in (SLICE, None)]
    for model, optimizer in models:
        model.to(memory_format=torch.channels_last)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the gradient of 'second.weight' came whole")
            model(tokens(0)).backward()
        optimizer.step()
    (model, _), (other, _) = models
    assert not model.second.weight.is_contiguous()
    torch.testing.assert_close(model.second.weight, other.second.weight)


def test_a_parametrization_that_comes_later_is_computed_once_a_pass() -> None:
    class Counted(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            self.calls += 1
            return weight * 0.5

    model, optimizer = toy()
    halves = [Counted() for _ in range(4)]
    layers = (model.embedding, model.second, model.up, model.down)
    for layer, half in zip(layers, halves, strict=True):
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", half)
        half.calls = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model(tokens(0)).backward()
    assert [half.calls for half in halves] == [1, 1, 1, 1]
    optimizer.step()


def test_steps_of_warm_up_are_as_ever() -> None:
    (model, cut), (other, whole) = toy(warm_up_steps=2), toy(warm_up_steps=2, slices=None)
    for step in range(3):
        for one, optimizer in ((model, cut), (other, whole)):
            optimizer.zero_grad()
            one(tokens(step)).backward()
            optimizer.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(other.named_parameters()), atol=1e-6, rtol=1e-5)


def test_a_gpu_s_streams_wait_for_each_other_where_autograd_sees_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer makes rows on the stream of its forward pass; what is complete is taken on the stream of the library."""
    _, optimizer = toy()
    layers, slot, of_layer, of_library = optimizer._backward.layers, Mock(), Mock(), Mock()
    assert layers is not None
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: of_layer)
    layers.note_stream(slot)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: of_library)
    with layers.joined(slot):
        of_library.wait_stream.assert_called_once_with(of_layer)
        of_layer.wait_stream.assert_not_called()
    of_layer.wait_stream.assert_called_once_with(of_library)
    with layers.joined(slot):
        of_library.wait_stream.assert_called_once()
