"""Going on from a file, and passes in a stream beside the usual one, on the device."""

import io
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resireduce.core.optimizer import DistributedOptimizer
from tests.gpu.loops import batches, distributed, net, step, stream_beside, trained
from tests.worlds import Net, same, seeded

NONE: dict[str, Any] = {"compressor": "none", "scheme": "none"}


# --- saving ---

SAVED: tuple[dict[str, Any], ...] = (
    {"scheme": "w+2d"},
    {"scheme": "w+2d", "gradients": "kept"},
    {"scheme": "w+2d", "residual_dtype": "int4"},
    {"scheme": "baseline", "residual_device": "cpu"},
    {"scheme": "baseline", "compressor": "dgc"},
    {"scheme": "baseline", "compressor": "powersgd"},
)


def saved(model: nn.Module, optimizer: DistributedOptimizer) -> io.BytesIO:
    file = io.BytesIO()
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(parts | {"residuals": optimizer.residual_state_dict()}, file)
    file.seek(0)
    return file


def loaded(device: torch.device, file: io.BytesIO, options: dict[str, Any]) -> tuple[nn.Module, DistributedOptimizer]:
    """Make model and optimizer anew, on a device, from a file that is read into the host's memory."""
    state = torch.load(file, map_location="cpu", weights_only=True)
    model = seeded(Net, seed=1).to(device)
    optimizer = distributed(model, **options)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    optimizer.load_residual_state_dict(state["residuals"])
    return model, optimizer


@pytest.mark.parametrize("options", SAVED)
def test_going_on_from_a_file_is_not_stopping(device: torch.device, options: dict[str, Any]) -> None:
    whole = trained(device, **options)
    model = net(device)
    optimizer = distributed(model, **options)
    made = batches(device)
    for batch in made[:2]:
        step(model, optimizer, batch)
    model, optimizer = loaded(device, saved(model, optimizer), options)
    assert optimizer.steps == 2
    for batch in made[2:]:
        step(model, optimizer, batch)
    assert same(whole, model)


# --- streams ---


class _Slow(torch.autograd.Function):
    """Has a GPU wait within the backward pass, so that another stream that does not wait for it comes too early."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if grad.is_cuda:
            torch.cuda._sleep(20_000_000)
        return grad


STREAMS: tuple[dict[str, Any], ...] = (
    {"scheme": "baseline"},
    {"scheme": "w+2d", "residual_dtype": "int4"},
    {"scheme": "baseline", "residual_device": "cpu"},
    {"scheme": "w+2d", "gradients": "kept"},
    {"update": "in_backward", **NONE},
)


@pytest.mark.parametrize("options", STREAMS)
def test_passes_in_a_stream_beside_and_steps_in_the_usual_one(device: torch.device, options: dict[str, Any]) -> None:
    """What is distributed in the usual stream has forward and backward passes in another, as scripts may have them."""
    ends = []
    for place in (nullcontext, lambda: stream_beside(device)):
        model = net(device)
        optimizer = distributed(model, **options)
        for x, y in batches(device):
            optimizer.zero_grad()
            with place():
                nn.functional.cross_entropy(_Slow.apply(model(x)), y).backward()
            optimizer.step()
        ends.append(model)
    assert same(*ends) and not same(ends[0], net(device))
