"""Half precision on the device: autocast, and the library's GradScaler for float16."""

import pytest
import torch

import resireduce
from tests.gpu.loops import batches, distributed, net, step, trained
from tests.worlds import same

SCALE = 2.0**10


@pytest.mark.parametrize("scheme", ["baseline", "w+2d"])
def test_streamed_is_kept_bit_for_bit_under_autocast_to_float16(device: torch.device, scheme: str) -> None:
    scalers = [resireduce.GradScaler(device.type, init_scale=SCALE) for _ in range(2)]
    kept, streamed = (
        trained(device, scaler=scaler, gradients=one, autocast=torch.float16, scheme=scheme)
        for scaler, one in zip(scalers, ("kept", "streamed"), strict=True)
    )
    assert same(kept, streamed) and not same(kept, net(device))


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_a_step_that_overflows_is_skipped(device: torch.device, gradients: str) -> None:
    model = net(device)
    scaler = resireduce.GradScaler(device.type, init_scale=SCALE)
    optimizer = distributed(model, grad_scaler=scaler, gradients=gradients)
    (x, y), *_ = batches(device)
    before = [parameter.clone() for parameter in model.parameters()]
    scaler.scale(torch.nn.functional.cross_entropy(model(x), y) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.overflowed and scaler.get_scale() == SCALE / 2
    assert all(torch.equal(now, was) for now, was in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision(device: torch.device, dtype: torch.dtype) -> None:
    model = net(device).to(dtype)
    optimizer = distributed(model, scheme="w+2d")
    for x, y in batches(device):
        step(model, optimizer, (x.to(dtype), y))
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
