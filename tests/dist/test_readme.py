"""The README's training loop, as it stands there."""

import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

README = Path(__file__).parents[2] / "README.md"


def test_the_training_loop_of_the_readme_trains(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    model = nn.Sequential(*[nn.Linear(120, 120) for _ in range(3)])
    before = [parameter.clone() for parameter in model.parameters()]
    batches = torch.randn(3, 5, 120, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        exec(code, {"torch": torch, "model": model, "batches": batches, "loss": loss})
    finally:
        dist.destroy_process_group()
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
