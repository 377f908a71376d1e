"""`python docs/build_memory.py`: docs/memory-in-a-step.svg, the memory of one step over time, as records have it.

Trains vgg-digits on one rank in three ways, and follows every tensor of the second step.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import BANDS, POINTS, unpack_moments
from benchmarks.training.build import build
from benchmarks.training.measure.tracker import measure_memory
from resireduce.comm.local import LocalCommunicator

PICTURE = Path(__file__).parent / "memory-in-a-step.svg"
WAYS: dict[str, dict[str, Any]] = {
    "without compression": {"compressor": "none", "scheme": "none", "gradients": "kept"},
    "compressed, with residuals": {"gradients": "kept"},
    "w+2d, streamed": {"gradients": "streamed", "scheme": "w+2d"},
}
COLOURS = ("#4c566a", "#81a1c1", "#a3be8c", "#d08770", "#ebcb8b")
"""Colours of BANDS, in their order."""
WIDTH, HEIGHT, GAP = 240, 260, 30


def followed(**options: Any) -> list[tuple[int, ...]]:
    """Return the bytes of each band at the moments of the second step of a cell with these options."""
    cell = Cell(model="vgg-digits", world_size=1, backend="local", steps=2, **options)
    torch.manual_seed(0)
    trainer = build(cell, LocalCommunicator(), None, Path("data"))
    batch = trainer.batch(next(trainer.indices()), 0)
    trainer.train_step(0, batch)
    return unpack_moments(measure_memory(trainer.optimizer, lambda: trainer.task.loss(trainer.model, batch))["moments"])


def panel(name: str, moments: list[tuple[int, ...]], left: int, full: float) -> list[str]:
    """Return the lines of SVG of one way: bands above one another, from `left` on; `full` bytes are the height."""
    below, lines = [0] * len(moments), []
    for band, colour in enumerate(COLOURS):
        above = [base + moment[band] for base, moment in zip(below, moments, strict=True)]
        edges = [*enumerate(above)] + [(i, below[i]) for i in reversed(range(len(above)))]
        path = " ".join(
            f"{left + i * WIDTH / POINTS:.1f},{GAP + HEIGHT * (1 - value / full):.1f}" for i, value in edges
        )
        lines.append(f'<polygon points="{path}" fill="{colour}"/>')
        below = above
    most = max(map(sum, moments))
    return [*lines, f'<text x="{left}" y="{GAP - 10}">{name}: {100 * most / full:.1f} %</text>']


def picture(ways: dict[str, list[tuple[int, ...]]]) -> str:
    """Return the SVG of all `ways`, in per cent of the fullest moment of the second."""
    full = max(map(sum, ways["compressed, with residuals"]))
    width, lines = 3 * (WIDTH + GAP) + GAP, []
    for number, (name, moments) in enumerate(ways.items()):
        lines += panel(name, moments, GAP + number * (WIDTH + GAP), full)
    for number, (band, colour) in enumerate(zip(BANDS.values(), COLOURS, strict=True)):
        x, y = GAP + number * 158, HEIGHT + GAP + 20
        lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 17}" y="{y + 11}">{band}</text>')
    size = f'width="{width}" height="{HEIGHT + 2 * GAP + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit("usage: python docs/build_memory.py")
    PICTURE.write_text(picture({name: followed(**options) for name, options in WAYS.items()}), encoding="utf-8")
