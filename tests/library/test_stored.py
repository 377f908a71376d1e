"""Storage precisions of residuals: what comes back is what was put in, within the stated error."""

import pytest
import torch

import resireduce
from resireduce.pieces import generator
from resireduce.residuals.stored import Blocks, Plain, Stored


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
