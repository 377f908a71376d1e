"""Residuals as they are stored: in few bits, in the host's memory, and added where the largest are looked for."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

import resireduce
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.base import Compressor
from resireduce.compressors.quantized import Fp16
from resireduce.compressors.topk import TopK
from resireduce.core.messages import Payload
from resireduce.grouping import Grouping
from resireduce.pieces import generator
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes, measure_states
from resireduce.residuals.base import FullResidual, NoResidual
from resireduce.residuals.stored import Blocks, Plain, Stored
from resireduce.scheme import GRADIENTS, SCHEMES, Scheme
from tests.worlds import Given, Net, averages, distributed, loss_of, residuals, same, seeded, train, train_world


def build(kind: str, shape: tuple[int, ...]) -> Stored:
    device = torch.device("cpu")
    return Blocks(shape, kind, device) if kind in Blocks.LARGEST else Plain(shape, getattr(torch, kind), device)


def values(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integers_are_unbiased_and_repeat_themselves(kind: str) -> None:
    stored, value, before = build(kind, (5, 100)), values((5, 100)), torch.get_rng_state()
    draws = []
    for number in [*range(400), 0]:
        stored.set_(value, generator(value.device, "x", number))
        draws.append(stored.read(torch.float32).clone())
    assert torch.equal(draws[0], draws[-1]) and not torch.equal(draws[0], draws[1])
    assert torch.equal(before, torch.get_rng_state())
    # The mean of 400 draws is within five standard errors; a draw's deviation is at most half a step.
    largest = value.abs().max()  # of the tensor: no block has a larger one
    error = (torch.stack(draws[:-1]).mean(0) - value).abs()
    assert (error <= 5 * largest / Blocks.LARGEST[kind] / 2 / 20).all()


@pytest.mark.parametrize("compressor", ["topk", "randomk", "chunked"])
@pytest.mark.parametrize("scheme", ["baseline", "partial"])
def test_gradients_beyond_float16_leave_residuals_in_it_and_parameters_finite(compressor: str, scheme: str) -> None:
    model = torch.nn.Linear(120, 120, bias=False)
    plain = torch.optim.SGD(model.parameters(), lr=1e-6)
    given = {"density": 0.02, "residual_dtype": "float16", "backend": "local"}
    with resireduce.distribute(model, plain, scheme, compressor, **given) as optimizer:
        for step in range(3):
            (model.weight * torch.randn(120, 120, generator=torch.Generator().manual_seed(step)) * 3e4).sum().backward()
            optimizer.step()
            optimizer.load_residual_state_dict(optimizer.residual_state_dict())
    assert model.weight.isfinite().all()


DTYPES = [None, "bfloat16", "int4"]


@pytest.mark.parametrize(
    ("scheme", "residual_dtype", "gradients"), zip(SCHEMES, cycle(DTYPES), cycle(GRADIENTS), strict=False)
)
def test_where_residuals_are_held_changes_nothing(scheme: str, residual_dtype: str | None, gradients: str) -> None:
    options = {"scheme": scheme, "gradients": gradients, "residual_dtype": residual_dtype, "steps": 4}
    near, _ = train_world(2, seeded(Net), **options)[0]
    far, optimizer = train_world(2, seeded(Net), residual_device="cpu", **options)[1]
    assert same(near, far) and not same(far, seeded(Net))
    held = residuals(optimizer)
    indices = sum(tensor.nbytes for name, tensor in held.items() if name.endswith((".rows", ".columns")))
    host = sum(tensor.nbytes for tensor in held.values()) - indices
    assert measure_states(optimizer).residuals == indices < 2000, "only numbers of rows and columns stay"
    planned = plan(Net, scheme=scheme, gradients=gradients, residual_dtype=residual_dtype, residual_device="cpu")
    assert (planned["host_residuals"], planned["residuals"]) == (host, indices)
    assert planned["total"] == planned["parameters"] + planned["gradients"] + indices + planned["optimizer_states"]


def test_what_was_fetched_for_a_step_goes_with_it() -> None:
    model, optimizer = train(LocalCommunicator(), seeded(Net), scheme="baseline", residual_device="cpu", steps=2)
    optimizer.zero_grad()
    largest = max(parameter.nbytes for parameter in model.parameters())
    with LiveBytes(lambda tensor: tensor.numel() >= 10_000) as alive:
        loss_of(model, torch.Generator()).backward()
        optimizer.step()
    assert alive.current_bytes == 0 and largest <= alive.peak_bytes <= 5 * largest, "what is used, and what comes next"


SHAPE = (300, 257)


@dataclass(frozen=True)
class InTurn(TopK):
    """Adds nothing on its way."""

    def select(self, flat: Tensor, name: str, step: int) -> Tensor:
        return super().select(flat, name, step)


@dataclass(frozen=True)
class Reversed(Fp16):
    """Sends rows in another order, and adds nothing on its way."""

    def compress(self, grad: Tensor, name: str, step: int) -> Payload:
        return super().compress(grad.flip(0), name, step)

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        return dense.copy_(super().add_(dense.flip(0), payload, scale).flip(0))


class Noting(NoResidual):
    """Adds nothing, and notes what is lost."""

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        left = error().clone()
        self._stored[name] = self.stored(left.shape, left)
        self._stored[name].set_(left, None)


class Halved(FullResidual):
    """Adds half of the gradient."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return super().compensate_(grad.div_(2), name)


def trained(compressor: Compressor, options: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """Return parameters and residuals after each of some steps."""
    model, source = Given(dtype, a=SHAPE, b=SHAPE), torch.Generator().manual_seed(0)
    groups = Grouping(groups=(("a", "b"),))
    found = list[Tensor]()
    with distributed(model, lr=1.0, compressor=compressor, groups=groups, **options) as optimizer:
        for _ in range(3):
            averages(model, optimizer, {name: torch.randn(SHAPE, generator=source).to(dtype) for name in "ab"})
            found += [one.detach().clone() for one in (*model.parameters(), *optimizer.residual_state_dict().values())]
    return found


KINDS: dict[str, dict[str, Any]] = {
    "full": {"scheme": "baseline"},
    "w": {"scheme": "w"},
    "w of compensated": {"scheme": "w", "options": {"norms": "compensated"}},
    "bfloat16": {"residual_dtype": "bfloat16"},
    "int8": {"residual_dtype": "int8"},
    "int4": {"residual_dtype": "int4"},
    "w in int8": {"scheme": "w", "residual_dtype": "int8"},
    "noted": {"scheme": Scheme(Noting, Noting, Noting)},
    "half of each gradient": {"scheme": Scheme(Halved, Halved, Halved)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compressors", [(TopK(0.01), InTurn(0.01)), (Fp16(), Reversed())])
def test_all_that_is_sent_and_stored_is_as_if_they_were_added_first(
    compressors: tuple[Compressor, Compressor], kind: str, dtype: torch.dtype
) -> None:
    ours, plain = (trained(compressor, KINDS[kind], dtype) for compressor in compressors)
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True)) and ours[0].any()
