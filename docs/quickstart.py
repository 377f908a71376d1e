"""Trains a small classifier with compressed gradients, and prints what it holds between two steps.

    torchrun --nproc-per-node 2 docs/quickstart.py           # w+2d, streamed gradients
    torchrun --nproc-per-node 2 docs/quickstart.py none      # without compression

Every rank draws points of its own, in a plane, and learns on which of two spirals each lies. It takes some seconds on a
CPU. With CUDA devices each rank takes one, over NCCL; that has not been run.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import resireduce


def spirals(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `count` points of two spirals, (count, 2), and which of them each is on, (count,)."""
    turn, arm = torch.rand(count, generator=source), torch.randint(2, (count,), generator=source)
    angle = 6 * turn + torch.pi * arm
    return torch.stack((turn * angle.cos(), turn * angle.sin()), 1), arm


def main(scheme: str) -> None:
    """Train for 300 steps on this rank's points; rank 0 prints accuracy and memory."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)  # the same model on all ranks
    layers = [nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 2)).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    compressor = "none" if scheme == "none" else "topk"
    optimizer = resireduce.distribute(model, optimizer, scheme=scheme, compressor=compressor, density=0.01)
    source = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(300):
        points, arms = (each.to(device) for each in spirals(64, source))
        optimizer.zero_grad()
        functional.cross_entropy(model(points), arms).backward()
        optimizer.step()
    points, arms = (each.to(device) for each in spirals(2000, torch.Generator().manual_seed(0)))
    right = (model(points).argmax(1) == arms).float().mean().item()
    states = resireduce.measure_states(optimizer)
    if dist.get_rank() == 0:
        print(f"{scheme}: {100 * right:.1f} % of new points right")
        print(f"held between two steps: {states.total:,} bytes, of which residuals {states.residuals:,}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "w+2d")
