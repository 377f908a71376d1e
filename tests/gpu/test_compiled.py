"""A compiled model: its gradients come all at once, at the end of one compiled backward pass."""

import torch

from tests.gpu.loops import trained
from tests.worlds import same


def test_a_compiled_model(device: torch.device) -> None:
    compiled = "inductor" if device.type == "cuda" else "aot_eager"
    kept, streamed = (trained(device, compiled=compiled, gradients=one, scheme="w+2d") for one in ("kept", "streamed"))
    assert same(kept, streamed)
    dense, plain = (trained(device, compiled=one, compressor="none", scheme="none") for one in (compiled, None))
    for mine, other in zip(dense.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
