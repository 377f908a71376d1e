"""Training on the device: streamed and kept gradients, schemes, precisions, compressors, optimizers."""

from typing import Any

import pytest
import torch

from resireduce.scheme import COMPRESSORS, SCHEMES
from tests.gpu.loops import batches, distributed, net, step, trained
from tests.worlds import OPTIMIZERS, residuals, same

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3", "int8", "int4")
LATER = {
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "fused-momentum": OPTIMIZERS["fused-momentum"],
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "fused-adamw": OPTIMIZERS["fused-adamw"],
    "capturable": lambda p: torch.optim.AdamW(p, 1e-3, capturable=True),
    "loop": lambda p: torch.optim.AdamW(p, 1e-3, foreach=False, fused=False),
}


ALIKE: list[dict[str, Any]] = [
    *({"scheme": scheme} for scheme in SCHEMES),
    *({"scheme": "none" if name == "none" else "baseline", "compressor": name} for name in COMPRESSORS),
    *({"scheme": scheme, "residual_dtype": dtype} for scheme in ("baseline", "w+2d") for dtype in DTYPES),
    *({"scheme": scheme, "autocast": torch.bfloat16} for scheme in ("baseline", "w+2d")),
    *({"max_grad_norm": norm} for norm in (0.1, 1e6)),
]


@pytest.mark.parametrize("options", ALIKE, ids=str)
def test_streamed_is_kept_bit_for_bit(device: torch.device, options: dict[str, Any]) -> None:
    kept, streamed = (trained(device, gradients=gradients, **options) for gradients in ("kept", "streamed"))
    assert same(kept, streamed) and not same(kept, net(device))


@pytest.mark.parametrize("options", [{"scheme": "baseline"}, {"scheme": "w+2d", "residual_dtype": "int4"}], ids=str)
def test_residuals_in_the_host_s_memory_change_nothing(device: torch.device, options: dict[str, Any]) -> None:
    near, far = trained(device, **options), trained(device, residual_device="cpu", **options)
    assert same(near, far)


def test_residuals_in_the_host_s_memory_are_pinned(device: torch.device) -> None:
    model = net(device)
    optimizer = distributed(model, scheme="baseline", residual_device="cpu")
    step(model, optimizer, batches(device)[0])
    held = residuals(optimizer).values()
    assert held and all(tensor.device.type == "cpu" for tensor in held)
    assert all(tensor.is_pinned() for tensor in held) or device.type == "cpu"


@pytest.mark.parametrize("name", LATER)
def test_optimizers_of_every_form(device: torch.device, name: str) -> None:
    if name == "capturable" and device.type == "cpu":
        pytest.skip("only on a GPU")
    kept, streamed = (trained(device, optimizer=LATER[name], gradients=one) for one in ("kept", "streamed"))
    assert same(kept, streamed) and not same(kept, net(device))


def test_the_step_of_the_device_is_that_of_the_cpu(device: torch.device) -> None:
    there, here = (trained(one, compressor="none", scheme="none") for one in (device, torch.device("cpu")))
    for mine, other in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-3, atol=1e-5)
