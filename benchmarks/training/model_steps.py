"""Times what the library does in a step for all gradients of a model, beside a copy of them and `torch.topk` of each.

`python -m benchmarks.training.model_steps MODEL --device D --output FILE [--tiny]`. The model's own passes and the
update of parameters are not part of it: gradients are handed over as copies, as in a step without the library.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from benchmarks.core.devices import DEVICES
from benchmarks.core.files import save_json
from benchmarks.core.registry import MODELS
from benchmarks.training.measure_rank import in_turn, now
from benchmarks.training.operations import WAYS, Idle
from resireduce import distribute
from resireduce.grouping import compressible
from resireduce.pieces import share
from resireduce.scheme import load

ROUNDS, WARM_UP = 20, 3
DENSITY = 0.01
INT4: Mapping[str, Any] = {"compressor": "topk", "scheme": "baseline", "residual_dtype": "int4"}
HANDED, COPIED, SELECTED = "gradients alone", "copy", "torch.topk of each"
"""What is timed without the library: that gradients are handed over; also copied; and their largest selected."""


class Handed(Function):
    """A number whose backward pass hands over a copy of a gradient."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return a number that depends on `parameter`."""
        ctx.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None]:
        """Return a copy of the gradient."""
        return ctx.gradient.clone(), None


def measured(model: nn.Module, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each way: its seconds in each round, all in turn, for one step of all gradients of `model`."""
    trained = [one for one in model.parameters() if one.requires_grad]
    source = torch.Generator(trained[0].device).manual_seed(0)
    gradients = [torch.randn(one.shape, generator=source, device=one.device) for one in trained]
    large = [one.numel() for one in compressible(model).values()]
    timings: dict[str, Callable[[int], float]] = {
        HANDED: _plain([nn.Parameter(one.detach()) for one in trained], gradients, lambda: None),
        COPIED: _plain([nn.Parameter(one.detach()) for one in trained], gradients, _copying(gradients)),
        SELECTED: _plain([nn.Parameter(one.detach()) for one in trained], gradients, partial(_select, gradients)),
    }
    closing = []
    for name, settings in (WAYS | {"int4": INT4}).items():
        own = copy.deepcopy(model)
        mine = [one for one in own.parameters() if one.requires_grad]
        optimizer = distribute(own, Idle(mine, lr=0.1), density=DENSITY, backend="local", **settings)
        closing.append(optimizer.close)
        timings[name] = partial(_timed, mine, gradients, optimizer.step, optimizer.zero_grad)
    seconds = in_turn([*timings.values()], range(WARM_UP + rounds), WARM_UP)
    for close in closing:
        close()
    at = {"tensors": len(trained), "elements": sum(one.numel() for one in trained), "compressed": sum(large)}
    return [{"way": way, **at, "seconds": found} for way, found in zip(timings, seconds, strict=True)]


def _copying(gradients: Sequence[Tensor]) -> Callable[[], object]:
    room = [torch.empty_like(one) for one in gradients]
    return lambda: [to.copy_(one) for to, one in zip(room, gradients, strict=True)]


def _select(gradients: Sequence[Tensor]) -> None:
    for one in gradients:
        torch.topk(one.view(-1).abs(), share(DENSITY, one.numel()), sorted=False)


def _plain(
    parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], step: Callable[[], object]
) -> Callable[[int], float]:
    """Return what times a step without the library, in which `step` follows the backward pass."""

    def clear() -> None:
        for one in parameters:
            one.grad = None

    return partial(_timed, parameters, gradients, step, clear)


def _timed(
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
    step: Callable[[], object],
    clear: Callable[[], None],
    _: int,
) -> float:
    clear()
    started = now(gradients[0])
    torch.autograd.backward([Handed.apply(one, own) for one, own in zip(parameters, gradients, strict=True)])
    step()
    return now(gradients[0]) - started


def main() -> int:
    """Time a model, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS, metavar="MODEL")
    parser.add_argument("--device", default="cuda", choices=DEVICES)
    parser.add_argument("--tiny", action="store_true", help="a round alone, to try it out")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with torch.device(args.device):
        model = load(MODELS[args.model])()
    rows = measured(model, 1 if args.tiny else ROUNDS)
    save_json({"model": args.model, "density": DENSITY, "rows": rows}, args.output)
    print("; ".join(f"{row['way']} {1e3 * min(row['seconds']):.2f} ms" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
