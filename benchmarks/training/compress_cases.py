"""Ways to compress a gradient with error feedback that are timed in turn: plain torch's, and the library's."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resireduce.api import build_feedback, find_compressor
from resireduce.comm.local import LocalCommunicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.grouping import Grouping
from resireduce.payload import Payload
from resireduce.scheme import COMPRESSORS
from resireduce.sending.message import Round
from resireduce.settings import Settings
from resireduce.share import share

Step = Callable[[Sequence[Tensor], int], object]
"""Compresses contiguous gradients, whose memory it may overwrite, in step number 0, 1, ..."""
COPY, TOPK, NAIVE, GRACE = "copy", "torch.topk", "naive", "GRACE's form"
GROUPED, SPECIFIC, BOTH = ("a", "w", "member"), ("d", "2d"), ("w+2d",)
PRECISIONS = ("bfloat16", "float8_e4m3", "int8", "int4")
LEFT_OUT = ("none", "threshold")
"""Compressors that have nothing to be left in a residual, or no density that could be compared."""


@dataclass(frozen=True)
class Case:
    """One way, and how many gradients its step takes: groups share a residual, so that they take two; w+2d three."""

    name: str
    make: Callable[[Tensor, float], Step]
    gradients: int = 1


def now(like: Tensor) -> float:
    """Return the time at which the device of `like` has done all that it was told, in seconds."""
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
    """Two that share a residual, and one that is specific, as far as the scheme knows such."""
    return 3 if scheme in BOTH else 2 if scheme in GROUPED else 1


def _copy(like: Tensor, density: float) -> Step:
    """One copy to memory that was used before: what this machine's memory can do."""
    target = like.clone()
    return lambda gradients, _: target.copy_(gradients[0])


def _topk(like: Tensor, density: float) -> Step:
    """Selection alone."""
    k = share(density, like.numel())
    return lambda gradients, _: torch.topk(gradients[0].view(-1).abs(), k, sorted=False).indices


def _naive(like: Tensor, density: float) -> Step:
    """The definition: a sum, `torch.topk` of its magnitudes, the values that are sent, and zeros in their places."""
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
    """As GRACE (Xu et al., ICDCS 2021) composes it: scaled sums, a dense copy of what is sent, and a difference."""
    k, held, beta, gamma = share(density, like.numel()), [torch.zeros_like(like).view(-1)], 1.0, 1.0

    def step(gradients: Sequence[Tensor], number: int) -> tuple[Tensor, Tensor]:
        compensated = beta * held.pop() + gamma * gradients[0].view(-1)
        places = torch.topk(compensated.abs(), k, sorted=False).indices
        values = compensated[places]
        held.append(compensated - torch.zeros_like(compensated).scatter_(0, places, values))
        return values, places

    return step


class _Layers(nn.Module):
    """So many matrices alike, "0" and on, as nothing but parameters."""

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
        for name, parameter in parameters.items():
            feedback.register(name, parameter)

        def step(gradients: Sequence[Tensor], number: int) -> list[Payload]:
            feedback.begin_step(number)
            pairs = zip(reversed(parameters), reversed(gradients), strict=True)
            sent = [_payload(feedback, gradient, name, number) for name, gradient in pairs]
            feedback.residual.end_step(number)
            feedback.states.commit()
            return sent

        return step

    return make


def _payload(feedback: ErrorFeedback, gradient: Tensor, name: str, number: int) -> Payload:
    """What is sent of a gradient, after all rounds in which that is found."""
    made = feedback.compress(gradient, name, number)
    while isinstance(made, Round):
        feedback.send([made], name)
        made = feedback.end_round(made)
    return made
