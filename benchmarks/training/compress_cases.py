"""Ways to compress a gradient with error feedback, timed in turn: in plain torch, and by the library."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resireduce.comm.local import LocalCommunicator
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.messages import Round
from resireduce.core.payload import Payload
from resireduce.grouping import Grouping
from resireduce.pieces import share
from resireduce.pipeline import build_feedback, find_compressor
from resireduce.scheme import COMPRESSORS
from resireduce.settings import Settings

Step = Callable[[Sequence[Tensor], int], object]
"""Compresses contiguous gradients, whose memory it may overwrite, in step number 0, 1, ..."""
COPY, TOPK, NAIVE, GRACE = "copy", "torch.topk", "naive", "GRACE's form"
GROUPED, SPECIFIC, BOTH = ("a", "w", "member"), ("d", "2d"), ("w+2d",)
PRECISIONS = ("bfloat16", "float8_e4m3", "int8", "int4")
LEFT_OUT = ("none", "threshold")
"""Compressors that leave nothing in a residual, or have no comparable density."""


@dataclass(frozen=True)
class Case:
    """One way, and the number of gradients in its step: two for groups, which share a residual; three for w+2d."""

    name: str
    make: Callable[[Tensor, float], Step]
    gradients: int = 1


def now(like: Tensor) -> float:
    """Return the time in seconds once the device of `like` has finished all its work."""
    if like.device.type == "cuda":
        torch.cuda.synchronize(like.device)
    return time.perf_counter()


def list_cases() -> list[Case]:
    """Return all cases: of plain torch first, then top-k by scheme and by precision, then the other compressors."""
    plain = [Case(COPY, _copy), Case(TOPK, _topk), Case(NAIVE, _naive), Case(GRACE, _grace)]
    return [*plain, *_of_library()]


def _of_library() -> Iterator[Case]:
    for scheme in ("baseline", *GROUPED, *SPECIFIC, *BOTH):
        yield Case(f"topk, {scheme}", _library("topk", scheme, None), _gradients(scheme))
    for precision in PRECISIONS:
        yield Case(f"topk, baseline, {precision}", _library("topk", "baseline", precision))
    for compressor in COMPRESSORS:
        if compressor not in ("topk", *LEFT_OUT):
            yield Case(f"{compressor}, baseline", _library(compressor, "baseline", None))


def _gradients(scheme: str) -> int:
    """Return the number of gradients: two that share a residual and one specific, if the scheme has these."""
    return 3 if scheme in BOTH else 2 if scheme in GROUPED else 1


def _copy(like: Tensor, density: float) -> Step:
    """Copy once to memory that was used before: the speed of this machine's memory."""
    target = like.clone()
    return lambda gradients, _: target.copy_(gradients[0])


def _topk(like: Tensor, density: float) -> Step:
    """Only select, by plain torch: what no exact top-k can do without."""
    k = share(density, like.numel())
    return lambda gradients, _: torch.topk(gradients[0].view(-1).abs(), k, sorted=False).indices


def _naive(like: Tensor, density: float) -> Step:
    """Follow the definition: a sum, `torch.topk` of its magnitudes, the values sent, and zeros in their places."""
    k, held = share(density, like.numel()), [torch.zeros_like(like).view(-1)]

    def step(gradients: Sequence[Tensor], number: int) -> tuple[Tensor, Tensor]:
        compensated = held.pop() + gradients[0].view(-1)
        places = torch.topk(compensated.abs(), k, sorted=False).indices
        values = compensated[places]
        compensated[places] = 0
        held.append(compensated)
        return values, places

    return step


def _grace(like: Tensor, density: float) -> Step:
    """Compress as GRACE (Xu et al., ICDCS 2021) does: scaled sums, a dense copy of the payload, and a difference."""
    k, held, beta, gamma = share(density, like.numel()), [torch.zeros_like(like).view(-1)], 1.0, 1.0

    def step(gradients: Sequence[Tensor], number: int) -> tuple[Tensor, Tensor]:
        compensated = beta * held.pop() + gamma * gradients[0].view(-1)
        places = torch.topk(compensated.abs(), k, sorted=False).indices
        values = compensated[places]
        held.append(compensated - torch.zeros_like(compensated).scatter_(0, places, values))
        return values, places

    return step


class _Layers(nn.Module):
    """A module of `count` equal parameters, named from "0"."""

    def __init__(self, like: Tensor, count: int):
        super().__init__()
        for number in range(count):
            self.register_parameter(str(number), nn.Parameter(torch.empty_like(like)))


def _library(compressor: str, scheme: str, precision: str | None) -> Callable[[Tensor, float], Step]:
    def make(like: Tensor, density: float) -> Step:
        model = _Layers(like, _gradients(scheme))
        parameters = dict(model.named_parameters())
        names = tuple(parameters)
        grouping = Grouping(
            groups=(names[:2],) if scheme in (*GROUPED, *BOTH) else (),
            specific=names[-1:] if scheme in (*SPECIFIC, *BOTH) else (),
        )
        settings = Settings(scheme, compressor, density, groups=grouping, residual_dtype=precision)
        feedback, _ = build_feedback(model, parameters, find_compressor(settings), LocalCommunicator(), settings)
        feedback.finiteness.at_once = False  # as in training: a GPU is asked once a step
        for name, parameter in parameters.items():
            feedback.register(name, parameter)

        def step(gradients: Sequence[Tensor], number: int) -> list[Payload]:
            feedback.begin_step(number)
            pairs = zip(reversed(parameters), reversed(gradients), strict=True)
            sent = [_payload(feedback, gradient, name, number) for name, gradient in pairs]
            feedback.residual.end_step(number)
            feedback.states.commit()
            feedback.finiteness.restart()
            return sent

        return step

    return make


def _payload(feedback: ErrorFeedback, gradient: Tensor, name: str, number: int) -> Payload:
    """Return the payload of a gradient, after all rounds that find it."""
    made = feedback.compress({name: gradient}, number)
    while isinstance(made, Round):
        feedback.send(made)
        made = feedback.end_round(made)
    return made.payloads[0]
