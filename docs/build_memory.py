"""`python docs/build_memory.py`: docs/memory-in-a-step.svg, the memory of one step over time, as the tracker sees it.

Trains vgg-digits for two steps on one rank in three ways, and follows every tensor of the second.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.core.cell import Cell
from benchmarks.training.build import build
from resireduce.comm.local import LocalCommunicator
from resireduce.memory import LiveBytes, held_tensors, track_states

PICTURE = Path(__file__).parent / "memory-in-a-step.svg"
WAYS: dict[str, dict[str, Any]] = {
    "kept": {"gradients": "kept"},
    "streamed": {"gradients": "streamed"},
    "streamed, in slices": {"gradients": "streamed", "slices": True},
}
BANDS = {
    "parameters": "#4c566a",
    "optimizer states": "#81a1c1",
    "residuals": "#a3be8c",
    "gradients, averages": "#d08770",
    "selections, messages": "#ebcb8b",
}
POINTS, WIDTH, HEIGHT, GAP = 240, 240, 260, 30


class Moments(LiveBytes):
    """As the tracker that `counts` and `held` are of, and remembers the bytes of each band after each change.

    Args:
        counts: which new tensors are followed.
        held: those of the states, by kind.
        shapes: of the parameters: what has one is a gradient or an average, and so are their slices, 2-D or more.
    """

    def __init__(self, counts: Callable[[Tensor], bool], held: dict[str, list[Tensor]], shapes: Iterable[torch.Size]):
        self.bands, self._band, self._shapes = dict.fromkeys(BANDS, 0), dict[int, str](), set(shapes)
        self.moments: list[list[int]] = []
        self._kind = ""
        super().__init__(counts)
        for kind, tensors in held.items():
            self._kind = kind.replace("_", " ") if kind != "gradients" else "gradients, averages"
            for tensor in tensors:
                self._follow(tensor)
        self._kind, self.moments = "", [[*self.bands.values()]]

    def _follow(self, tensor: Tensor) -> None:
        key = tensor.untyped_storage()._cdata
        if key not in self._alive:
            dense = tensor.shape in self._shapes or tensor.dim() > 1
            self._band[key] = self._kind or ("gradients, averages" if dense else "selections, messages")
            self.bands[self._band[key]] += tensor.untyped_storage().nbytes()
            super()._follow(tensor)
            self._note()

    def _forget(self, key: int) -> None:
        self.bands[self._band.pop(key)] -= self._alive[key]
        super()._forget(key)
        self._note()

    def _note(self) -> None:
        self.moments.append([*self.bands.values()])


def followed(**options: Any) -> list[list[int]]:
    """Return the bytes of each band after each change within the second step of a cell with these options."""
    cell = Cell(model="vgg-digits", world_size=1, backend="local", steps=2, **options)
    torch.manual_seed(0)
    trainer = build(cell, LocalCommunicator(), None, Path("data"))
    batch = trainer.batch(next(trainer.indices()), 0)
    trainer.train_step(0, batch)
    trainer.optimizer.zero_grad()
    held = held_tensors(trainer.optimizer)
    tracker = Moments(track_states(trainer.optimizer)._counts, held, [p.shape for p in held["parameters"]])
    with tracker:
        trainer.train_step(1, batch)
    return [*tracker.moments]  # not what goes when the model does


def thinned(moments: list[list[int]]) -> list[list[int]]:
    """Return POINTS of the moments, the fullest of each stretch of them."""
    size = max(1, len(moments) / POINTS)
    stretches = [moments[int(i * size) : int((i + 1) * size)] for i in range(POINTS)]
    return [max(stretch, key=sum) for stretch in stretches if stretch]


def panel(name: str, moments: list[list[int]], left: int, full: float) -> list[str]:
    """Return the lines of SVG of one way: bands above one another, from `left` on; `full` bytes are the height."""
    points, below, lines = thinned(moments), [0] * POINTS, []
    for band, colour in enumerate(BANDS.values()):
        above = [base + moment[band] for base, moment in zip(below, points, strict=False)]
        edges = [*enumerate(above)] + [(i, below[i]) for i in reversed(range(len(above)))]
        path = " ".join(
            f"{left + i * WIDTH / POINTS:.1f},{GAP + HEIGHT * (1 - value / full):.1f}" for i, value in edges
        )
        lines.append(f'<polygon points="{path}" fill="{colour}"/>')
        below = above
    most = max(map(sum, moments))
    return [*lines, f'<text x="{left}" y="{GAP - 10}">{name}: {100 * most / full:.1f} % at the fullest</text>']


def picture(ways: dict[str, list[list[int]]]) -> str:
    """Return the SVG of all `ways`, in per cent of the fullest moment of the first."""
    full = max(map(sum, next(iter(ways.values()))))
    width, lines = 3 * (WIDTH + GAP) + GAP, []
    for number, (name, moments) in enumerate(ways.items()):
        lines += panel(name, moments, GAP + number * (WIDTH + GAP), full)
    for number, (band, colour) in enumerate(BANDS.items()):
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
